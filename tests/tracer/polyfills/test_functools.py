import collections.abc
import functools
import operator

import pytest

from minidynamo.tracer.polyfills import functools as twins
from minidynamo.tracer.records.registry import CODE_POLYFILLS

NUMBERS = [5, 2, 9, 2]


@pytest.mark.parametrize("args", [(operator.sub, NUMBERS), (operator.sub, NUMBERS, 100), (operator.add, [], 1)])
def test_reduce(args):
    assert twins.reduce(*args) == functools.reduce(*args)
    assert twins.reduce(args[0], iter(args[1]), *args[2:]) == functools.reduce(*args)


@functools.singledispatch
def describe(value):
    return "anything"


@describe.register(int)
@describe.register(str)
def _(value):
    return "simple"


@describe.register
def _(value: collections.abc.Sequence):
    return "sequence"


@pytest.mark.parametrize("value", [1, True, "a", [1], {}, None])
def test_single_dispatch(value):
    assert CODE_POLYFILLS[describe.__code__] is twins.single_dispatch
    assert twins.single_dispatch(describe, value) == describe(value)


def test_what_a_twin_cannot_do_it_refuses():
    with pytest.raises(NotImplementedError):
        twins.single_dispatch(describe)


def test_reducing_nothing_raises():
    with pytest.raises(TypeError):
        twins.reduce(operator.add, [])
