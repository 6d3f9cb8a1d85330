"""The grad mode a program leaves, finds and switches, at breaks too, with gradients as in eager."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager

BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)]


def no_grad_around_a_break(x):
    with torch.no_grad():
        y = x * 2
        minidynamo.graph_break()
        z = y + x
        inside = torch.is_grad_enabled()
    return z * x, inside, torch.is_grad_enabled()


def switched_for_good(x):
    torch.set_grad_enabled(False)
    y = x * 2
    minidynamo.graph_break()
    z = y * 3
    torch.set_grad_enabled(True)
    return z * x


def switched_on_inside(x):
    with torch.enable_grad():
        y = x * x
        v = y[1:]
    return y, v, x + 1


def raises_inside_after_another(x):
    with torch.no_grad():
        minidynamo.graph_break()
    with torch.set_grad_enabled(True):
        raise ValueError("inside")


def switched_inside_another(x):
    with torch.no_grad():
        with torch.set_grad_enabled(True):
            minidynamo.graph_break()
        y = x * 2
    return y, x * 3


def made_before_a_break(x):
    context = torch.set_grad_enabled(False)
    minidynamo.graph_break()
    with context:
        y = x * 2
    return y, x * 3


def made_and_overruled(x):
    context = torch.set_grad_enabled(False)
    torch.set_grad_enabled(True)
    return x * 2, context


SWITCHES = (raises_inside_after_another, switched_inside_another, made_before_a_break, made_and_overruled)


@pytest.mark.parametrize("fn", SWITCHES)
def test_a_switch_goes_back_to_the_mode_in_which_it_was_made(fn):
    assert_same_as_eager(fn, lambda: torch.randn(4, requires_grad=True), calls=2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", (no_grad_around_a_break, switched_for_good, switched_on_inside))
def test_grad_mode_is_followed(fn, backend):
    assert_same_as_eager(fn, lambda: torch.randn(4, requires_grad=True), backend=backend, calls=2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_grad_mode_of_the_caller(backend):
    compiled = minidynamo.compile(switched_on_inside, backend=backend)
    x = torch.randn(4, requires_grad=True)
    for enabled in (True, False, True):
        with torch.set_grad_enabled(enabled):
            expected, actual = switched_on_inside(x), compiled(x)
        assert [t.requires_grad for t in actual] == [t.requires_grad for t in expected]
        (grad,) = torch.autograd.grad(actual[0].sum(), x)
        assert torch.equal(grad, 2 * x)
