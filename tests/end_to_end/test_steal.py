"""Lists that the caller gives away are empty behind the call, and their elements live as long as they are needed."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.errors import ArgumentError
from minidynamo.testing import no_recompile

BACKENDS = ["eager", "aot_eager", pytest.param("native", marks=pytest.mark.cpp)]
ones = torch.ones


def behind_a_break(acts, x):
    a = acts[0] + 1
    minidynamo.graph_break()
    return a + acts[1] + x


def only_returned(acts, x):
    return acts[0]


def not_used(acts, x):
    return x + 1


def dead_behind_a_break(acts, x):
    n = len(acts)
    minidynamo.graph_break()
    return x + n


def with_a_constant(acts, x):
    return acts[0] * acts[-1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", (behind_a_break, only_returned, not_used, dead_behind_a_break, with_a_constant))
def test_stolen_lists_end_empty(fn, backend):
    compiled = minidynamo.compile(fn, backend=backend, steal=("acts",))
    for acts in ([ones(3), ones(3)], [ones(3), ones(3)], [ones(3), 2], [ones(3)] * 2):
        expected = fn(list(acts), ones(3))
        assert torch.equal(compiled(acts, ones(3)), expected)
        assert acts == []


def test_a_local_that_was_assigned_to_is_not_the_stolen_list():
    @minidynamo.compile(backend="eager", steal=("xs",))
    def f(xs, ys):
        a = xs[0] + 1
        xs = ys
        minidynamo.graph_break()
        return a + xs[0]

    for _ in range(2):
        xs, ys = [ones(2)], [ones(2)]
        assert torch.equal(f(xs, ys), ones(2) * 3)
        assert xs == [] and len(ys) == 1


def test_only_lists_can_be_stolen():
    f = minidynamo.compile(lambda xs=None: 1 if xs is None else xs[0] + 1, backend="eager", steal=("xs",))
    f([ones(2)])
    with pytest.raises(ArgumentError, match=r"MD107(?s:.*)`xs`(?s:.*)tuple"):
        f((ones(2),))
    assert f() == 1
    with no_recompile():
        f([ones(2)])
