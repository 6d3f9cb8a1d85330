"""The code around a step of torch's optimizers: the grad mode, and checks that only matter to recorded graphs."""

from __future__ import annotations

import pytest
import torch
from torch.optim.optimizer import _use_grad_for_differentiable

from minidynamo.tracer.polyfills import optimizers as twins


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
