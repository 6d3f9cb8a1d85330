"""Tensor parallel layers are nodes of the graph; other DTensors end the graph. Results are those of eager."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional

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
        torch.testing.assert_close(train(lambda m, to=backend: whole(m, to)), expected)


def whole(m, backend="aot_eager"):
    return minidynamo.compile(m, backend=backend, fullgraph=True)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x):
        heads = (layer(x).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        return self.out(functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))


class Gated(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate, self.up = nn.Linear(width, 16, bias=False), nn.Linear(width, 16, bias=False)
        self.down = nn.Linear(16, width, bias=False)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.attention, self.second, self.gated = norm(width), Attention(width), norm(width), Gated(width)

    def forward(self, x):
        x = x + self.attention(self.first(x))
        return x + self.gated(self.second(x))


class Llama(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(16, width), nn.ModuleList([Block(width)])
        self.norm, self.head = norm(width), nn.Linear(width, 16, bias=False)

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def norm(width):
    return nn.RMSNorm(width, eps=1e-5)


COLUMNS = {f"attention.{name}": ColwiseParallel for name in "qkv"} | {
    f"gated.{name}": ColwiseParallel for name in ("gate", "up")
}


def parallel(m):
    plan = {name: kind() for name, kind in COLUMNS.items()}
    plan |= {"attention.out": RowwiseParallel(), "gated.down": RowwiseParallel()}
    for block in m.blocks:
        parallelize_module(block, init_device_mesh("cpu", (2,)), plan)
    return m


def sequence_parallel(m):
    mesh, parts = init_device_mesh("cpu", (2,)), Shard(1)
    embedding = RowwiseParallel(input_layouts=Replicate(), output_layouts=parts)
    head = ColwiseParallel(input_layouts=parts, output_layouts=Replicate())
    parallelize_module(m, mesh, {"embedding": embedding, "norm": SequenceParallel(), "head": head})
    plan = {name: kind() for name, kind in COLUMNS.items()}
    plan |= {name: RowwiseParallel(output_layouts=parts) for name in ("attention.out", "gated.down")}
    plan |= {name: SequenceParallel() for name in ("first", "second")}
    plan |= {
        name: PrepareModuleInput(input_layouts=(parts,), desired_input_layouts=(Replicate(),))
        for name in ("attention", "gated")
    }
    for block in m.blocks:
        parallelize_module(block, mesh, plan)
    return m


def train_llama(make, compile_it):
    torch.manual_seed(0)
    m = make(Llama())
    f, optimizer = compile_it(m), torch.optim.AdamW(m.parameters(), lr=1e-2, foreach=False)
    losses = []
    for number in range(3):
        optimizer.zero_grad()
        tokens = (torch.arange(8).reshape(2, 4) + number) % 16
        loss = functional.cross_entropy(f(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    parameters = (p.full_tensor() if isinstance(p, DTensor) else p for p in m.parameters())
    return [*losses, *(p.detach() for p in parameters)]


@programs
def TP_the_plan_of_a_llama(rank):
    expected = train_llama(parallel, lambda m: m)
    torch.testing.assert_close(train_llama(parallel, whole), expected)


@programs
def TP_layers_with_other_hooks_frozen_weights_and_keywords(rank):
    def make(m):
        m = parallel(m)
        m.blocks[0].gated.up.register_forward_hook(lambda module, args, result: result * 2)
        m.blocks[0].attention.q.weight.requires_grad_(False)
        return m

    expected = train_llama(make, lambda m: m)
    torch.testing.assert_close(train_llama(make, lambda m: minidynamo.compile(m, backend="aot_eager")), expected)


@programs
def TP_a_layer_that_is_frozen_later_compiles_again(rank):
    m = nn.Sequential(nn.Linear(4, 4))
    parallelize_module(m, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(output_layouts=Replicate())})
    whole(m)
    x = torch.ones(2, 4)
    assert m(x).requires_grad
    m.requires_grad_(False)
    made = m(x)
    assert not made.requires_grad and type(made) is torch.Tensor and torch.equal(made, minidynamo.uncompile(m)(x))


@programs
def TP_the_sequence_parallel_plan_of_a_llama(rank):
    expected = train_llama(sequence_parallel, lambda m: m)
    made = train_llama(sequence_parallel, lambda m: minidynamo.compile(m, backend="aot_eager"))
    torch.testing.assert_close(made, expected)


@programs
def TP_a_distributed_argument(rank):
    x = distribute_tensor(torch.arange(8.0).reshape(4, 2), init_device_mesh("cpu", (2,)), [Shard(0)])
    made = minidynamo.compile(lambda x: (x * 2 + 1).sum(), backend="aot_eager")(x)
    assert made.full_tensor() == (x * 2 + 1).sum().full_tensor() == 64


test_on_two_ranks = programs.test()
