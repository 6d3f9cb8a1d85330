"""Tests of minidynamo/tracer/polyfills/modules.py: methods of nn.Module, and fused optimizers with learning rates that
vary."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.optimizer import _use_grad_for_differentiable

import minidynamo
from minidynamo.testing import CompileCounter
from minidynamo.tracer.polyfills import modules as twins
from minidynamo.tracer.records.registry import POLYFILLS


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.shared = self.first
        self.register_buffer("offset", torch.ones(3))
        self.empty = None
        self.register_parameter("missing", None)

    def forward(self, x, scale=1):
        return self.second(self.first(x)) * scale + self.offset


WALKS = ["named_modules", "modules", "named_children", "children", "named_parameters", "parameters"]


@pytest.mark.parametrize("name", [*WALKS, "named_buffers", "buffers"])
@pytest.mark.parametrize("kwargs", [{}, {"prefix": "net"}, {"recurse": False}, {"remove_duplicate": False}])
def test_walks_give_what_the_originals_give(name, kwargs):
    net = Net()
    original = getattr(nn.Module, name)
    if not set(kwargs) <= set(original.__code__.co_varnames):
        return
    expected = list(original(net, **kwargs))
    actual = list(POLYFILLS[id(original)](net, **kwargs))
    assert [_identity(item) for item in actual] == [_identity(item) for item in expected]


def _identity(item):
    return (item[0], id(item[1])) if isinstance(item, tuple) else id(item)


def test_calls_of_modules_are_not_guarded_by_the_classes_that_take_packed_sequences():
    compiled = minidynamo.compile(nn.Sequential(nn.ReLU(), nn.Tanh()).forward, backend="eager")
    compiled(torch.ones(2))
    assert "_RECURRENT" not in str(compiled.guards())


class Step:
    defaults = {"differentiable": False}  # noqa: RUF012

    def __init__(self, differentiable):
        self.defaults = {"differentiable": differentiable}


def ask(optimizer, fails=False):
    if fails:
        raise ValueError
    return torch.is_grad_enabled()


@pytest.mark.parametrize("differentiable", [False, True])
def test_the_twin_switches_grad_mode_as_the_decorator_does(differentiable):
    decorated = _use_grad_for_differentiable(ask)
    optimizer = Step(differentiable)
    for enabled in (False, True):
        with torch.set_grad_enabled(enabled):
            assert twins.step_in_its_grad_mode(decorated, optimizer) is decorated(optimizer)
            with pytest.raises(ValueError):
                twins.step_in_its_grad_mode(decorated, optimizer, True)
            assert torch.is_grad_enabled() is enabled


def test_the_check_of_recorded_graphs_does_nothing():
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(1))])
    assert twins.check_health_for_graph_capture(optimizer) is None


@pytest.mark.parametrize("set_to_none", [False, True])
def test_zero_grad(set_to_none):
    gradients = []
    for zero_grad in (torch.optim.Optimizer.zero_grad, twins.zero_gradients):
        parameter = torch.nn.Parameter(torch.ones(2))
        parameter.grad = torch.ones(2)
        zero_grad(torch.optim.SGD([parameter], lr=0.1), set_to_none)
        gradients.append(None if parameter.grad is None else parameter.grad.tolist())
    assert gradients[0] == gradients[1] == (None if set_to_none else [0, 0])


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
def test_a_learning_rate_that_varies(make):
    results = []
    counter = CompileCounter()
    for compiled in (False, True):
        parameter = torch.nn.Parameter(torch.linspace(0, 1, 4))
        optimizer = make([parameter], lr=0.1, fused=True)
        step = minidynamo.compile(optimizer.step, backend=counter, fullgraph=True) if compiled else optimizer.step
        for number in range(5):
            optimizer.param_groups[0]["lr"] = 0.1 + 0.01 * number
            parameter.grad = torch.ones(4) * number
            step()
        results.append(parameter.detach())
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    assert counter.frame_count == 2
