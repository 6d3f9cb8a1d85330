"""Modules built by torch.fx, in captured programs."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import fx, nn

import minidynamo


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x, scale=2):
        return self.norm(self.linear(x)).relu() * scale


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.traced = fx.symbolic_trace(Net())

    def forward(self, x):
        return self.traced(x, scale=3) + 1


@pytest.mark.parametrize("make", [Around, lambda: fx.symbolic_trace(Net())])
def test_a_graph_module_is_captured(make) -> None:
    net = make()
    state, x = copy.deepcopy(net.state_dict()), torch.randn(4, 3, requires_grad=True)

    def program(x):
        net.load_state_dict(state)
        y = net(x)
        return y, y.sum(), net.training

    expected = program(x)
    minidynamo.compile(net, backend="eager", fullgraph=True)
    for got, wanted in zip(program(x), expected, strict=True):
        assert torch.equal(got, wanted) if isinstance(wanted, torch.Tensor) else got == wanted
    assert minidynamo.stats(net).graphs == 1


def test_another_graph_is_noticed() -> None:
    net = Around()
    expected = copy.deepcopy(net)
    minidynamo.compile(net, backend="eager", fullgraph=True)
    x = torch.randn(4, 3)
    assert torch.equal(net(x), expected(x))
    for traced in (net.traced, expected.traced):
        call = next(node for node in traced.graph.nodes if node.target == "relu")
        call.target = "tanh"
        traced.recompile()
    assert torch.equal(net(x), expected(x))
    assert minidynamo.stats(net).graphs == 2


class OwnCall(fx.GraphModule):
    def __call__(self, *args):
        return super().__call__(*args) * 10


def test_a_call_of_its_own_class_is_traced() -> None:
    traced = fx.symbolic_trace(nn.Linear(3, 3))
    own = OwnCall(traced, traced.graph)
    x = torch.randn(2, 3)
    f = minidynamo.compile(lambda net, x: net(x) + 1, backend="eager", fullgraph=True)
    assert torch.equal(f(own, x), traced(x) * 10 + 1)
    assert f.stats.graphs == 1
