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


class WeightedLoss(nn.Module):
    """Creates its buffers as nn.Buffer, as the losses of detection models in transformers do."""

    def __init__(self, weight):
        super().__init__()
        weights = torch.ones(4)
        weights[-1] = weight
        self.weights = nn.Buffer(weights)
        self.scale = nn.Buffer(torch.full((1,), 2.0), persistent=False)
        self.register_buffer("registered", torch.ones(4))

    def forward(self, x):
        return (x * self.weights * self.scale).sum()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_buffers_are_created_inside(backend):
    def loss(x, weight):
        module = WeightedLoss(weight)
        return module(x), list(module.state_dict()), [name for name, _ in module.named_buffers()], module.scale

    compiled = minidynamo.compile(loss, backend=backend, fullgraph=True)
    for weight in (0.1, 0.2, 0.3):
        x, y = (torch.linspace(0, 1, 4, requires_grad=True) for _ in range(2))
        expected, found = loss(x, weight), compiled(y, weight)
        expected[0].backward()
        found[0].backward()
        assert found[1:3] == expected[1:3] == (["weights", "registered"], ["weights", "scale", "registered"])
        torch.testing.assert_close((found[0], found[3], y.grad), (expected[0], expected[3], x.grad))
        assert isinstance(found[3], nn.Buffer) and not found[3].persistent


def test_buffers_replace_the_buffers_of_a_module_from_outside():
    def replace(module, x):
        module.weights = nn.Buffer(x * 2, persistent=False)
        module.scale = nn.Buffer(x * 3)
        return module.weights + module.scale

    modules, x = (WeightedLoss(1.0), WeightedLoss(1.0)), torch.ones(4)
    found = minidynamo.compile(replace, backend="eager", fullgraph=True)(modules[0], x)
    assert torch.equal(found, replace(modules[1], x))
    assert [*modules[0].state_dict()] == [*modules[1].state_dict()] == ["scale", "registered"]


def test_a_buffer_shares_memory_and_differentiability_with_its_data():
    def share(x):
        buffer = nn.Buffer(x)
        x.add_(1)
        return buffer, buffer.requires_grad, buffer.is_leaf

    compiled = minidynamo.compile(share, backend="eager", fullgraph=True)
    buffer, *flags = compiled(torch.ones(3))
    assert (buffer.tolist(), flags) == ([2, 2, 2], [False, True])


@pytest.mark.parametrize("classes", [nn.Buffer, (nn.Parameter, nn.Buffer), (nn.Buffer, torch.Tensor)])
def test_buffers_are_told_from_other_tensors(classes):
    def kinds(module, x):
        tensors = (module.weights, module.registered, x, x * 2, nn.Buffer(x), nn.Parameter(x), 3)
        return x * 2, [isinstance(value, classes) for value in tensors]

    module, compiled = WeightedLoss(1.0), minidynamo.compile(kinds, backend="eager", fullgraph=True)
    for x in (torch.ones(4), nn.Buffer(torch.ones(4)), torch.ones(4)):
        assert compiled(module, x)[1] == kinds(module, x)[1]
