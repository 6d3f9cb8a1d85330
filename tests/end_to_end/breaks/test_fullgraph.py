"""With fullgraph=True a break is an error, but an error of the program is the program's."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.errors import Unsupported
from minidynamo.testing import no_recompile


def test_a_break_is_an_error_each_time():
    @minidynamo.compile(backend="eager", fullgraph=True)
    def f(x):
        x = x + 1
        minidynamo.graph_break("here")
        return x

    for _ in range(2):
        with pytest.raises(Unsupported, match="here"):
            f(torch.ones(2))


def shapes(x):
    return x + torch.ones(7)


def index(x):
    return x[10]


def in_a_callee(x):
    return [].pop(7) + x


def raised(x):
    y = x + 1
    raise KeyError(y.shape[0])


@pytest.mark.parametrize("fn", (shapes, index, in_a_callee, raised))
def test_the_program_raises_what_it_raises_in_eager(fn):
    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    with pytest.raises(Exception) as expected:
        fn(torch.ones(3))
    for _ in range(2):
        with pytest.raises(expected.type, match=str(expected.value)[:20].replace("(", ".")):
            compiled(torch.ones(3))
    with no_recompile(), pytest.raises(expected.type):
        compiled(torch.ones(3))


def test_an_error_that_the_program_catches_is_no_break():
    @minidynamo.compile(backend="eager", fullgraph=True)
    def f(x):
        try:
            raise ValueError
        except ValueError:
            return x + 1

    assert f(torch.ones(2)).tolist() == [2, 2]


def test_an_error_that_only_python_can_raise_for_a_handler_is_a_break():
    made_outside = RuntimeError("kept")

    @minidynamo.compile(backend="eager", fullgraph=True)
    def f(x):
        try:
            raise made_outside
        except RuntimeError:
            return x + 1

    with pytest.raises(Unsupported):
        f(torch.ones(2))
