"""The grad mode before, inside and after a program, at breaks too, with gradients as in eager."""

from __future__ import annotations

import contextlib
import functools

import pytest
import torch

import minidynamo
from minidynamo.core.events import on_event
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import rows_of

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


def a_view_behind_a_block(x):
    with torch.no_grad():
        minidynamo.graph_break()
    return x[1:]


def switched_on_inside(x):
    with torch.enable_grad():
        y = x * x
        v = y[1:]
    return y, v, x + 1


class Switches:
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


SWITCHES = rows_of(Switches)


@pytest.mark.parametrize("fn", SWITCHES)
def test_a_switch_goes_back_to_the_mode_in_which_it_was_made(fn):
    assert_same_as_eager(fn, lambda: torch.randn(4, requires_grad=True), calls=2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", (no_grad_around_a_break, switched_for_good, a_view_behind_a_block, switched_on_inside))
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


CONTEXTS = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "set_grad_enabled": lambda: torch.set_grad_enabled(False),
    "inference_mode": torch.inference_mode,
    "record_function": lambda: torch.profiler.record_function("range"),
}


def modes():
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


class Cases:
    def entered_by_a_stack(make, x):
        with contextlib.ExitStack() as stack:
            for context in (make(), torch.enable_grad(), make()):
                stack.enter_context(context)
            minidynamo.graph_break()
            y, inside = x * 2, modes()
        return y, inside, modes()

    def entered_by_hand(make, x):
        context = make()
        context.__enter__()
        minidynamo.graph_break()
        y, inside = x * 2, modes()
        context.__exit__(None, None, None)
        return y, inside, modes()

    def entered_once_more(make, x):
        context = make()
        with context:
            y = x * 2
        minidynamo.graph_break()
        with context:
            return y, x * 3, modes()

    def switched_inside_a_block(make, x):
        with torch.enable_grad(), make():
            torch.set_grad_enabled(True)
            minidynamo.graph_break()
            y, inside = x * 2, modes()
        return y, inside, modes()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", CONTEXTS)
@pytest.mark.parametrize("fn", rows_of(Cases))
def test_a_context_that_is_open_at_a_break_goes_back_to_the_mode_before(fn, name, backend):
    program = functools.partial(fn, CONTEXTS[name])
    compiled = minidynamo.compile(lambda x: program(x), backend=backend)
    for enabled in (True, True, False):
        x = torch.randn(4, requires_grad=True)
        found = []
        for call in (program, compiled):
            with torch.set_grad_enabled(enabled):
                y, *rest = call(x)
                # The name of the node that made a tensor differs, and with it where its text breaks lines.
                rest = [(r.tolist(), r.requires_grad) if isinstance(r, torch.Tensor) else r for r in rest]
                found.append((y.requires_grad, y.is_inference(), torch.is_inference_mode_enabled(), rest, modes()))
        assert found[0] == found[1]


def test_a_switch_made_outside_switches_where_it_is_entered():
    with torch.enable_grad():
        context = torch.set_grad_enabled(False)

    def program(x):
        with context:
            y = x * 2
        return y, x * 3

    x = torch.randn(4, requires_grad=True)
    compiled = minidynamo.compile(program, backend="eager")
    for _ in range(2):
        assert [t.requires_grad for t in compiled(x)] == [t.requires_grad for t in program(x)] == [False, True]


# Views from `no_grad` with a base written outside of `no_grad`: torch raises where `is_leaf` or `grad_fn` is read.


def returned(c, v):
    return v, c


def carried_over_a_break(c, v):
    u = v.detach() + 1
    minidynamo.graph_break()
    return u + v.detach(), v, c


def asked_for_its_history(c, v):
    try:
        known = v.grad_fn is None
    except RuntimeError:
        known = "torch raises"
    return v.detach() * 2, known, v.requires_grad


def described(value):
    if not isinstance(value, torch.Tensor):
        return value
    try:
        history = value.grad_fn is None
    except RuntimeError:
        history = "torch raises"
    return value.detach().tolist(), value.requires_grad, history, value._version


@pytest.mark.parametrize("is_inside", [False, True])
@pytest.mark.parametrize("fn", [returned, carried_over_a_break, asked_for_its_history])
@pytest.mark.filterwarnings("ignore:.*MD404")
def test_views_without_a_history_that_torch_tells(fn, is_inside):
    def program(c, v):
        if v is None:
            with torch.no_grad():
                v = c.view(-1)
            c.mul_(2)
        return fn(c, v)

    outcomes, noticed = [], []
    unsubscribe = on_event(lambda event: noticed.append(getattr(event.data.get("diagnostic"), "code", None)))
    for call in (program, minidynamo.compile(program, backend="aot_eager")):
        c, v = torch.ones(3, requires_grad=True) * 2, None
        if not is_inside:
            with torch.no_grad():
                v = c.view(-1)
            c.mul_(2)
        outcomes.append([described(value) for value in call(c, v)])
    unsubscribe()
    assert outcomes[0] == outcomes[1]
    assert "MD299" not in noticed
