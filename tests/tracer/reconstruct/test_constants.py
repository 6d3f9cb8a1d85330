"""Literals that evaluate to the very objects of the program."""

from __future__ import annotations

import pytest

from minidynamo.tracer.reconstruct.constants import Pins, is_new, spelling
from minidynamo.variables.base import ConstantVariable


@pytest.mark.parametrize("value", [None, True, 1000, -1000, 2.5, "a b", b"a", (1, (2.5, "x")), (), (1,)], ids=repr)
def test_literals_have_the_value(value):
    spelled = spelling(value)
    assert spelled is not None and eval(spelled) == value


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 2j, 1 << 20_000, (1, 2j), [1]], ids=lambda v: str(type(v))
)
def test_no_literal(value):
    assert spelling(value) is None


def new(text):
    return eval(text)


def test_pinned_objects_are_those_of_the_text():
    number, negative, text, group = new("1000"), new("-2000"), new("'a b'"), new("(1000, 'a b')")
    pins = Pins()
    parts = [pins.literal(value) for value in (number, negative, text)]
    assert pins.literal(group) == "(1000, 'a b', )"
    namespace: dict = {}
    exec(f"def program():\n    return {', '.join(parts)}, (1000, 'a b'), [7, 8, 1000]", namespace)
    program = namespace["program"]
    pins.replace_constants_of(program)
    first, second = program(), program()
    assert first[0] is number and first[1] is negative and first[2] is text and first[3] is group
    assert second[3] is group and second[4] == [7, 8, 1000] and second[4][2] is number


def test_a_second_object_of_the_same_value_is_no_literal():
    one, other = new("1000"), new("1000")
    pins = Pins()
    assert pins.literal(one) == "1000" == pins.literal(one)
    assert pins.literal(other) is None
    assert pins.literal(1) == "1" and pins.literal(1.0) == "1.0" and pins.literal(True) == "True"


def test_a_text_that_python_would_intern_as_a_literal():
    made = "".join(["some", "name"])
    assert Pins().literal(made) is None and Pins().literal("name") == "'name'"


def test_what_is_new():
    number = int("1000")
    assert is_new(ConstantVariable(number))
    assert not is_new(ConstantVariable(number, lasting=True)) and not is_new(ConstantVariable(7))
