"""Tests of minidynamo/tracer/handlers/torch_contexts.py: grad modes, record_function and context managers as
decorators."""

from __future__ import annotations

import torch
from torch.profiler import record_function

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Programs, leaf, vector
from tests.tracer.capturing import capture, targets

programs = Programs()
test_same_as_eager = programs.test()


MANAGER = torch.no_grad()


@programs(leaf)
class Cases:
    def manager_made_outside(x):
        with MANAGER:
            y = x * 2
        return y, x * 3


def test_a_block_without_effect_leaves_no_switch():
    def f(x):
        with torch.enable_grad():
            return x * 2

    assert len(targets(capture(f, torch.ones(2)))) == 1


@torch.no_grad()
def without_grad(x):
    return x * 2


@torch.enable_grad()
def with_grad(x):
    return x * 3


@torch.set_grad_enabled(False)
def switched_off(x):
    return x * 4


@record_function("range")
def in_a_range(x):
    return x * 5


@programs(vector)
def ranges(x):
    with record_function("outer"), torch.autograd.profiler.record_function("inner", "arguments"):
        y = x * 2
    return y + 1


@programs(leaf)
class Contexts:
    def decorated_outside(x):
        return without_grad(x), with_grad(x), switched_off(x), in_a_range(x)

    def decorated_inside(x):
        @torch.no_grad()
        def inner(y, *, factor=5):
            return y * factor

        enabled = torch.enable_grad()(lambda y: y * 7)
        off = torch.set_grad_enabled(False)(lambda y: y * 9)
        return inner(x), inner(x, factor=x), enabled(x), off(x), inner.__name__, torch.is_grad_enabled(), x * 2

    @programs(leaf, graphs=2, breaks=1)
    def break_in_a_range(x):
        with record_function("outer"):
            with torch.no_grad():
                y = x * 2
                minidynamo.graph_break()
                z = y + x
            w = z * x
        return w, y.requires_grad


def test_a_range_is_no_node():
    assert len(targets(capture(ranges, vector()))) == 2


def test_a_break_in_a_range_opens_it_for_real():
    def program(x):
        with record_function("mine"):
            y = x * 2
            minidynamo.graph_break()
            return y + 1

    compiled = minidynamo.compile(program, backend="eager")
    compiled(vector())
    with torch.profiler.profile(acc_events=True) as profile:
        compiled(vector())
    assert any(event.key == "mine" for event in profile.key_averages())


def test_a_range_that_a_break_has_left_open_is_left_behind_the_next_graph():
    def program(x, fails):
        try:
            with record_function("range"):
                y = x * 2
                minidynamo.graph_break()
                y = y.sin()
                if fails:
                    raise ValueError
        except ValueError:
            y = x
        return y + 1

    def names(call, fails):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            call(torch.ones(2), fails)
        events = profile.events()
        inside = next(event.time_range for event in events if event.name == "range")
        return [e.name for e in events if inside.start <= e.time_range.start and e.time_range.end <= inside.end]

    inputs = [lambda fails=fails: (torch.ones(2), fails) for fails in (False, True, False)]
    assert_same_as_eager(program, *inputs)
    compiled = minidynamo.compile(program, backend="eager")
    compiled(torch.ones(2), False)
    assert compiled.stats.graph_breaks == 1
    for fails in (False, True):
        compiled(torch.ones(2), fails)
        assert "aten::sin" in names(compiled, fails)


class Logged(torch.no_grad):
    def __enter__(self):
        super().__enter__()
        return 7


def test_a_subclass_of_a_grad_mode():
    def program(x):
        with Logged() as factor:
            y = x * factor
        return y, y.requires_grad, torch.is_grad_enabled()

    assert_same_as_eager(program, lambda: torch.ones(3, requires_grad=True), breaks=0)


def test_what_a_context_notes_can_be_asked_for():
    def program(x):
        context, other = torch.no_grad(), torch.set_grad_enabled(True)
        found = [hasattr(context, "prev"), context.prev, other.prev, other.mode]
        with context:
            found.append(context.prev)
        return x, found, hasattr(torch.inference_mode(False), "mode")

    assert_same_as_eager(program, vector)
