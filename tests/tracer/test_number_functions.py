"""Tests of minidynamo/tracer/number_functions.py: functions and methods of numbers that change, compiled once more."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import minidynamo

X = torch.arange(4.0)

ONCE_MORE: dict[str, Callable[..., Any]] = {
    "roots and logarithms": lambda a: (math.sqrt(a), math.log(a), math.log2(a), math.log10(a)),
    "bounded": lambda a: (math.sin(a), math.tanh(a), math.atan(a), math.fabs(-a), math.exp(a / 9)),
    "rounding": lambda a: (int(a), round(a), math.floor(a), math.ceil(a), math.trunc(a)),
    "divmod": lambda a: divmod(a, 3),
    "special methods": lambda a: (a.__round__(), a.__floor__(), a.__radd__(1), a.__rsub__(1), a.__neg__(), a.__lt__(3)),
    "a tensor of one element": lambda a: torch.tensor(a),
}


def compiles(fn: Callable[..., Any], *numbers: float) -> int:
    compiled = minidynamo.compile(lambda x, a: (x + 1, fn(a)), backend="eager", fullgraph=True)
    for number in numbers:
        assert compiled(X, number)[1] == fn(number)
    return int(compiled.stats.graphs)


@pytest.mark.parametrize("name", ONCE_MORE)
def test_functions_of_a_float_are_compiled_once_more(name: str) -> None:
    assert compiles(ONCE_MORE[name], 3.5, 4.25, 5.75, 6.5) == 2


def test_methods_of_an_int() -> None:
    assert compiles(lambda n: (n.__index__(), n.__float__(), n.__rfloordiv__(70), n.__and__(3), float(n)), 5, 6, 7) == 2


def test_a_method_that_does_not_know_its_operand_says_so() -> None:
    assert compiles(lambda n: n.__add__("text"), 5, 6, 7) == 2


def test_a_function_that_would_raise_does() -> None:
    compiled = minidynamo.compile(lambda x, a: x * math.sqrt(a), backend="eager")
    for number in (4.0, 9.0, 16.0):
        assert torch.equal(compiled(X, number), X * math.sqrt(number))
    with pytest.raises(ValueError, match="math domain error"):
        compiled(X, -1.0)
