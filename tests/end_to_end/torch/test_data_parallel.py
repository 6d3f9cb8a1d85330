"""Modules wrapped for data parallel training, compiled inside and outside of the wrapper."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import minidynamo
from minidynamo.testing import CompileCounterWithBackend


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))


def train(wrap, where):
    counter = CompileCounterWithBackend("aot_eager")
    net = model()
    if where == "inside":
        net = minidynamo.compile(net, backend=counter)
    net = wrap(net)
    if where == "outside":
        net = minidynamo.compile(net, backend=counter)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for number in range(3):
        optimizer.zero_grad()
        loss = net(torch.full((2, 3), float(number))).pow(2).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in net.parameters())], counter.frame_count


@pytest.fixture
def process_group():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without torch.distributed")
@pytest.mark.parametrize("where", ["inside", "outside"])
def test_distributed_data_parallel(process_group, where):
    wrap = nn.parallel.DistributedDataParallel
    expected, _ = train(wrap, "nowhere")
    actual, graphs = train(wrap, where)
    torch.testing.assert_close(actual, expected)
    assert graphs == 1


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_data_parallel(where):
    expected, _ = train(nn.DataParallel, "nowhere")
    actual, graphs = train(nn.DataParallel, where)
    torch.testing.assert_close(actual, expected)
    assert graphs == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without torch.distributed")
@pytest.mark.parametrize("as_view", [True, False])
def test_gradients_of_several_batches_add_up_in_distributed_training(process_group, as_view):
    def gradients(backend):
        net = model()
        if backend:
            net = minidynamo.compile(net, backend=backend)
        net = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=as_view)
        for number in range(3):
            net(torch.full((2, 3), number + 1.0)).pow(2).sum().backward()
        return [p.grad.clone() for p in net.parameters()]

    torch.testing.assert_close(gradients("aot_eager"), gradients(None))
