"""Tests of minidynamo/tracer/records/operator_table.py: the table against Python's own operators."""

import contextlib
import operator

import pytest

from minidynamo.tracer.records.operator_table import (
    ARITHMETIC,
    AUGMENTED,
    BINARY,
    BITWISE,
    COMPARISONS,
    IN_PLACE,
    UNARY,
)


class Asked:
    """Records lookups of special methods, and finds none."""

    def __init__(self):
        self.methods = []


def asks(name):
    def method(self, *others):
        self.methods.append(name)
        return NotImplemented

    return method


METHODS = {name for names in BINARY.values() for name in names} | {name for name, _ in IN_PLACE.values()}
for method in METHODS:
    setattr(Asked, method, asks(method))


class Left(Asked):
    pass


class Right(Asked):
    pass


def compute(text, left, right):
    with contextlib.suppress(TypeError):
        exec(text, {}, {"left": left, "right": right})


@pytest.mark.parametrize("symbol", [*ARITHMETIC, *BITWISE, *COMPARISONS])
def test_python_asks_for_the_methods_of_the_table(symbol):
    function = (ARITHMETIC | BITWISE | COMPARISONS)[symbol]
    left, right = Left(), Right()
    compute(f"left {symbol} right", left, right)
    assert (left.methods, right.methods) == tuple([name] for name in BINARY[function])


@pytest.mark.parametrize("symbol", AUGMENTED)
def test_in_place_first_then_as_without(symbol):
    left, right = Left(), Right()
    compute(f"left {symbol} right", left, right)
    name, fallback = IN_PLACE[AUGMENTED[symbol]]
    assert left.methods == [name, BINARY[fallback][0]] and right.methods == [BINARY[fallback][1]]


def test_unary_operators():
    assert {function(5): name for function, name in UNARY.items()} == {-5: "__neg__", -6: "__invert__", 5: "__abs__"}
    assert UNARY[operator.pos] == "__pos__"
