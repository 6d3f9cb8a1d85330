"""Tests of minidynamo/tracer/numbers/functions.py: functions and methods of numbers that change, compiled once more."""

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
    "of two numbers": lambda a: (math.pow(a, 1.5), math.pow(2, a), math.fmod(a, 2), math.atan2(a, 2), math.hypot(3, a)),
    "signs and bases": lambda a: (math.copysign(a, -0.0), math.log(a, 2), math.remainder(a, 2.5), round(a, 1)),
    "of what is small": lambda a: (math.log1p(a), math.expm1(a), math.erf(a), math.asin(a / 10), math.degrees(a)),
    "of gamma, and of what is next": lambda a: (
        (math.gamma(a), math.lgamma(a), math.ulp(a), math.nextafter(a, 9), math.ldexp(a, 3))
    ),
    "questions": lambda a: (math.isnan(a), math.isinf(a), math.isfinite(a), math.isclose(a, 5.0, rel_tol=0.75)),
    "by keyword, of three, in two parts": lambda a: (
        round(a, ndigits=1),
        math.hypot(a, 3, 4),
        math.modf(a),
        math.frexp(a),
    ),
    "sums": lambda a: (sum((a, 0.1, 0.2, 1)), sum([1, a], start=0.5), sum(a * k for k in range(3)), sum((), a)),
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


def test_functions_of_ints() -> None:
    assert compiles(lambda n: (math.isqrt(n), math.gcd(n, 12), n.bit_length(), n.bit_count()), 5, 6, 7, 60) == 2
    assert compiles(lambda n: (math.lcm(n, 12), math.comb(n, 2), math.perm(n, 2), math.comb(9, n)), 5, 6, 7, 60) == 2
    assert compiles(lambda n: (math.factorial(n), math.perm(9, n)), 5, 6, 7, 0, 19) == 2
    assert compiles(lambda n: torch.tensor(n), 5, 6, 7, 0, -(2**40)) == 2


def test_an_answer_about_a_number_is_guarded() -> None:
    compiled = minidynamo.compile(lambda x, a: x if math.isnan(a) or a.is_integer() else x * a, backend="eager")
    for number in (0.5, 0.25, math.nan, 3.0, 0.75):
        assert torch.equal(compiled(X, number), X if math.isnan(number) or number == 3.0 else X * number)
    assert compiled.stats.compiles == 4


EXTREME = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1e308, 5e-324, 2, 0, True, 2**53 + 1, 2**64, -(10**400)]
EXTREME_CALLS: dict[str, Callable[..., Any]] = {
    "math.pow": lambda a: (math.pow(a, 2), math.pow(a, -0.5)),
    "math.hypot": lambda a: (math.hypot(a, 1), math.copysign(1.0, a), math.atan2(a, -1.0)),
    "math.log": lambda a: (math.log(a, 3), math.fmod(3.5, a)),
    "round": lambda a: round(a, 2),
    "math.gamma": lambda a: (math.ulp(a), math.nextafter(a, 1), math.gamma(a)),
    "math.ldexp": lambda a: (math.ldexp(a, 3), math.ldexp(1.5, int(a))),
    "math.perm": lambda a: (math.lcm(int(a), 4), math.comb(int(a), 3), math.perm(4, int(a))),
    "sum": lambda a: sum((a, 1, 0.5)),
    "questions": lambda a: (math.isnan(a), math.isclose(a, 1.0, rel_tol=0.5)),
    "a tensor": lambda a: torch.tensor(a).item(),
    "a tensor of half precision": lambda a: torch.tensor(a, dtype=torch.float16).item(),
    "a tensor of ints": lambda a: torch.tensor(a, dtype=torch.uint8).item(),
}


@pytest.mark.parametrize("name", EXTREME_CALLS)
def test_extreme_numbers(name: str) -> None:
    def program(x: torch.Tensor, a: Any) -> Any:
        return x + 1, EXTREME_CALLS[name](a)

    def outcome(fn: Callable[..., Any], number: Any) -> str:
        try:
            return repr(fn(X, number)[1])  # distinguishes zeros, and equates NaN
        except (ArithmeticError, ValueError, RuntimeError) as error:
            return repr(error)

    compiled = minidynamo.compile(program, backend="eager", recompile_limit=100)
    for number in (2.5, 3.5, 2, 3, *EXTREME):
        assert outcome(compiled, number) == outcome(program, number), number


def test_a_method_that_does_not_know_its_operand_says_so() -> None:
    assert compiles(lambda n: n.__add__("text"), 5, 6, 7) == 2


LISTS = {
    "floats": (lambda n: torch.tensor([n, 1.0, 2, n * 2]), (0.1, 0.2, 0.3), 2),
    "nested": (lambda n: torch.tensor([[n, 1], (2.5, n)]), (3, 4, 5), 2),
    "ints": (lambda n: torch.tensor([[n], [2]]), (3, 4, 5), 2),
    "half types": (lambda n: torch.as_tensor((n, 1e-3), dtype=torch.float16), (0.1, 0.2, 0.3), 2),
    "infinity between": (lambda n: torch.tensor([n, 1]), (0.1, 0.2, float("inf"), 0.3), 3),
    "with a bool": (lambda n: torch.tensor([n, True]), (0.1, 0.2, 0.3), 3),
    "rounded to ints": (lambda n: torch.tensor([n, -n], dtype=torch.int32), (1.5, 2.5, 3.5), 2),
    "more than fits into ints": (lambda n: torch.tensor([n / 1e9], dtype=torch.uint8), (1.0, 255e9, 3.0, 4.0), 2),
    "many": (lambda n: torch.tensor([n] * 65), (0.1, 0.2, 0.3), 3),
}


@pytest.mark.parametrize("name", LISTS)
def test_tensors_of_lists_of_numbers(name):
    program, values, graphs = LISTS[name]
    compiled = minidynamo.compile(lambda x, n: x.sum() * program(n), backend="eager", fullgraph=True)
    for n in values:
        expected, got = program(n), compiled(torch.ones((), dtype=torch.int32), n)
        assert torch.equal(expected, got) and expected.dtype == got.dtype
    assert compiled.stats.graphs == graphs
