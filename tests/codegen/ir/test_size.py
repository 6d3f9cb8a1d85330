"""Sizes at run time: arithmetic like that of ints, without assumptions that may turn out false."""

import itertools
from operator import floordiv, mod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minidynamo.codegen.ir.size import (
    Derived,
    Size,
    Symbol,
    ceil_division,
    derived,
    divide,
    evaluate,
    exact_quotient,
    floor_division,
    hint,
    known_at_least,
    known_less,
    numbers_of,
    parenthesized,
    product,
    size_of,
    symbols_of,
)

S, T, ANY = Symbol("s", 2, 7), Symbol("t", 1, 5), Symbol("any", None, 3)
s, t, anything = map(size_of, (S, T, ANY))


def value(size, at):
    """Returns the value of a size where S and T, and all sizes derived from S and T, have the values `at`."""
    values = {S: at[0], T: at[1], ANY: -4}
    pending = list(numbers_of(size))
    while pending:
        number = pending.pop()
        if isinstance(number, Derived):
            a, b = (value(part, at) for part in number.args)
            values[number] = {"floordiv": floordiv, "mod": mod, "max": max, "min": min}[number.op](a, b)
    return evaluate(size, values)


@st.composite
def sizes(draw, depth=3):
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from([s, t, 1, 3, s * t, s * 4 + t, draw(st.integers(-5, 9))]))
    inner, other = draw(sizes(depth=depth - 1)), draw(sizes(depth=depth - 1))
    match draw(st.integers(0, 4)):
        case 0:
            return inner + other
        case 1:
            return inner - other
        case 2:
            return inner * other
        case 3:
            return floor_division(inner, draw(st.integers(1, 9)))
        case _:
            return derived(draw(st.sampled_from(["max", "min"])), inner, other)


POINTS = list(itertools.product((2, 3, 7, 64), (1, 2, 5)))


@settings(deadline=None)
@given(sizes(), sizes(), st.integers(1, 9))
def test_arithmetic_is_that_of_ints(a, b, n):
    quotient, rest = divide(a, b) if b != 0 else (0, a)
    for at in POINTS:
        left, right = value(a, at), value(b, at)
        assert value(a + b, at) == left + right
        assert value(a - b, at) == left - right
        assert value(a * b, at) == left * right
        assert value(quotient * b + rest, at) == left
        assert value(floor_division(a, n), at) == left // n
        assert value(derived("mod", a, n), at) == left % n
        assert value(ceil_division(a, n), at) == -(-left // n)
        assert not known_at_least(a, 3) or left >= 3
        assert not known_less(a, b) or left < right


def test_what_is_constant_is_an_int():
    assert s - s == 0 and isinstance(s - s, int)
    assert s * 2 - s * 2 + 5 == 5
    assert exact_quotient(s * t * 4, s * 2) == t * 2
    assert exact_quotient(s * t, s + t) is None
    assert product([s, 4, t]) == 4 * s * t


def test_equal_sizes_are_equal_values():
    assert (s + 1) * (t - 1) == s * t - s + t - 1
    assert hash(s * t) == hash(t * s)


@pytest.mark.parametrize(
    ("size", "bound", "known"),
    [
        (s, 2, True), (s, 3, False), (s - 2, 0, True), (s - 2, 1, False), (s * t - 1, 1, True), (s - t, 0, False),
        (anything, 0, False), (anything * 0 + 1, 1, True), (s * s - s, 2, True), (t - s, -100, False),
    ],
)  # fmt: skip
def test_what_is_known(size, bound, known):
    assert known_at_least(size, bound) is known


def test_quotients_that_are_known():
    assert floor_division(s * t - 1, t) == s - 1
    assert floor_division(6 * s + 4, 3) == 2 * s + 1
    assert floor_division(s * t, t) == s
    half = floor_division(s, 2)
    assert isinstance(half, Size) and known_at_least(half, 1) and not known_at_least(half, 2)
    assert floor_division(s, 2) == half


def test_hints_only_guess():
    assert hint(s * t + floor_division(s, 2)) == 7 * 5 + 3
    assert hint(9) == 9


def test_text():
    assert str(s * t * 2 - s + 1) == "2 * s * t - s + 1"
    assert str(floor_division(s - 5, 2)) == "((s - 5) // 2)"
    assert parenthesized(s) == "s" and parenthesized(-s) == "(-s)" and parenthesized(s * 2) == "(2 * s)"
    assert str(derived("max", s, t)) == "max(s, t)"
    assert {symbol.name for symbol in symbols_of(derived("mod", s * t, 5))} == {"s", "t"}
