"""Tensor parallel layers and DTensor arguments: the graph ends cleanly, and results are those of eager."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import minidynamo
from tests.ranks import Ranks

programs = Ranks(__name__)


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def train(compile_it):
    torch.manual_seed(0)
    m = TwoLayers()
    parallelize_module(m, init_device_mesh("cpu", (2,)), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    f, optimizer = compile_it(m), torch.optim.SGD(m.parameters(), lr=0.1)
    losses = []
    for number in range(3):
        optimizer.zero_grad()
        loss = f(torch.full((4, 8), number + 1.0)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(p.full_tensor().detach() for p in m.parameters())]


@programs
def TP_two_linear_layers(rank):
    expected = train(lambda m: m)
    for backend in ("eager", "aot_eager"):
        torch.testing.assert_close(train(lambda m, to=backend: minidynamo.compile(m, backend=to)), expected)


@programs
def TP_a_distributed_argument(rank):
    x = distribute_tensor(torch.arange(8.0).reshape(4, 2), init_device_mesh("cpu", (2,)), [Shard(0)])
    made = minidynamo.compile(lambda x: (x * 2 + 1).sum(), backend="aot_eager")(x)
    assert made.full_tensor() == (x * 2 + 1).sum().full_tensor() == 64


test_on_two_ranks = programs.test()
