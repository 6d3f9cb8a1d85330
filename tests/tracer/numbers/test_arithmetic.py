"""Numbers that differ from call to call: each program is compiled at most twice, with eager's results."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import minidynamo

X = torch.arange(4.0)


def graphs(fn: Callable[..., Any], *calls: tuple[Any, ...]) -> int:
    """Returns the number of compiles for these calls, each checked against eager's result, class by class."""
    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True, recompile_limit=200)
    for call in calls:
        expected, got = fn(*call), compiled(*call)
        assert _alike(got, expected), (call, got, expected)
    return int(compiled.stats.graphs)


def _alike(got: Any, expected: Any) -> bool:
    if type(got) is not type(expected):
        return False
    if isinstance(expected, torch.Tensor):
        return torch.equal(got, expected)
    if isinstance(expected, tuple | list):
        return len(got) == len(expected) and all(map(_alike, got, expected))
    return repr(got) == repr(expected)  # distinguishes zeros, and equates NaN


ONCE_MORE: dict[str, Callable[..., Any]] = {
    "int arithmetic": lambda x, n: (x + n, n + 1, n - 1, 2 * n, n * n, -n, abs(-n), +n, n // 2, n % 3, 7 - n, n**2),
    "division": lambda x, n: (x * (1 / n), n / 2, 10 / n, 10 // n, 10 % n),
    "floats of ints": lambda x, n: (x * float(n), n * 0.5, n**0.5, 0.9**n, 1 - 0.9**n),
    "math": lambda x, n: (x * math.sqrt(n), math.log(n), math.cos(n), math.exp(n / 100), math.floor(n * 0.7)),
    "rounding": lambda x, n: (x[: int(n * 0.2)], round(n * 0.37), math.ceil(n / 3), int(n)),
    "nested": lambda x, n: (x + (n + 1) * 2 - n, (n * 0.1 + 0.2) * 0.3),
    "in a container": lambda x, n: [x + 1, (n, n + 1)],
    "a sum": lambda x, n: (x + 1, sum([n, n, 1])),
}


@pytest.mark.parametrize("name", ONCE_MORE)
def test_an_int_that_changes_is_compiled_once_more(name: str) -> None:
    assert graphs(ONCE_MORE[name], *((X, n) for n in (5, 6, 7, 8, 11))) == 2


COMPARED: dict[str, Callable[..., Any]] = {
    "with a number": lambda x, n: (x + 1 if n > 2 else x - 1, n),
    "with zero": lambda x, n: x + 1 if n else x,
    "with another one": lambda x, n: (x + 1 if n != 2.5 and n >= len("abc") else x, n),
    "min and max": lambda x, n: (x + 1, min(n, 100), max(n, 1), max(2, n)),
    "with some": lambda x, n: x + 1 if n in (1, 2, 3) else x - 1,
}


@pytest.mark.parametrize("name", COMPARED)
def test_an_int_that_is_only_compared_is_compiled_once(name: str) -> None:
    assert graphs(COMPARED[name], *((X, n) for n in (5, 6, 7, 8, 11))) == 1


@pytest.mark.parametrize("value", [0, 1, -3])
def test_zero_one_and_negative_ints_are_ints_like_any(value: int) -> None:
    assert graphs(lambda x, n: (x + n, n * 3, n // 2, n % 5), (X, 5), (X, 6), (X, value)) == 2


def test_floats_are_computed_in_the_order_of_the_program() -> None:
    def program(x: torch.Tensor, a: float, b: float) -> Any:
        return x * (a + b + 0.1), (a + b) + 0.1, a + (b + 0.1), a * b / 3, -a, abs(a), a // 0.3, a % 0.3

    calls = [(X, 0.1 * k, 1e16 / (k + 1)) for k in range(1, 6)]
    assert graphs(program, *calls) == 2


def test_a_comparison_of_floats_guards_its_answer() -> None:
    program = lambda x, a: x + 1 if a * 3 > 0.3 else x - 1  # noqa: E731
    assert graphs(program, (X, 0.2), (X, 0.3), (X, 0.4), (X, 0.1), (X, 0.05), (X, 0.1 + 1e-17)) == 3


def test_a_value_that_decides_what_happens_is_a_constant() -> None:
    def program(x: torch.Tensor, n: int) -> Any:
        for _ in range(n):
            x = x + 1
        return x, f"{n}", [0] * n, {n: 1}[n]

    assert graphs(lambda x, n: program(x, n)[0], (X, 2), (X, 3), (X, 4), (X, 3)) == 3
    assert graphs(lambda x, n: x + len(program(x, n)[1]), (X, 2), (X, 3), (X, 2)) == 2


def test_numbers_beyond_those_of_tensors_are_constants() -> None:
    assert graphs(lambda x, n: (x + 1, n * 2), (X, 2**70), (X, 2**71), (X, 2**70)) == 2


def test_a_bool_is_not_a_number_that_varies() -> None:
    assert graphs(lambda x, flag: x + 1 if flag else x - 1, (X, True), (X, False), (X, True)) == 2
    assert graphs(lambda x, n: (x + n, n), (X, 3), (X, 4), (X, True)) == 3


POWERS: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "two floats": (lambda x, a, n: x * (1 - a**n), [(0.9, 2.0), (0.8, 3.0), (0.7, 4.0), (0.0, 9.0), (1.0, 5e5)]),
    "a float and an int": (lambda x, a, n: x * a**n, [(0.9, 2), (-0.8, 3), (0.7, 4), (-0.0, 0), (-1.0, 1001)]),
    "growth": (lambda x, a, n: x * a**n, [(1.5, 2), (1.25, 3), (2.5, 40), (3.5, 60)]),
    "an inverse": (lambda x, a, n: x * a**-n, [(2.5, 2), (3.5, 3), (1.0, 4), (99.0, 5)]),
    "of a constant": (lambda x, a, n: x * 2.5 ** (n - 3), [(0, 2), (0, 3), (0, 4), (0, 40), (0, 0)]),
    "of a whole constant": (lambda x, a, n: x * 10 ** (-n / 4), [(0, 2), (0, 3), (0, 4), (0, 40), (0, -3)]),
    "whole": (lambda x, a, n: (x + 1, 2**n, a**n), [(3, 2), (-2, 3), (5, 4), (0, 6), (-1, 61)]),
    "by constants": (lambda x, a, n: x * a**0.9 * a**3 * (1 - a) ** 2, [(0.5, 0), (0.9, 0), (0.0, 0), (3.5, 0)]),
    "inverse, by constants": (lambda x, a, n: x * a**-2 + a**-0.5, [(0.5, 0), (0.9, 0), (2.0, 0), (3.5, 0)]),
    "of what is negative": (lambda x, a, n: x * a**2 + a**3.0, [(-0.5, 0), (0.9, 0), (-2.0, 0), (0.0, 0)]),
}


@pytest.mark.parametrize("name", POWERS)
def test_a_power_of_numbers_is_compiled_once_more(name: str) -> None:
    fn, calls = POWERS[name]
    assert graphs(fn, *((X, *numbers) for numbers in calls)) == 2


def test_a_power_is_what_python_says_where_it_raises_is_complex_or_of_another_class() -> None:
    def program(x: torch.Tensor, a: Any, n: Any) -> Any:
        try:
            return x + 1, a**n
        except ArithmeticError as error:
            return x + 1, type(error).__name__

    nan = float("nan")
    bases = [0.5, 2, 0.0, -8.0, -8, 1e200, nan, 0, True, 10**400]
    exponents = [2, -1, -1.5, 1 / 3, 400.0, nan, False]
    graphs(program, (X, 0.25, 0.75), (X, 0.75, 1.25), *((X, a, n) for a in bases for n in exponents))
