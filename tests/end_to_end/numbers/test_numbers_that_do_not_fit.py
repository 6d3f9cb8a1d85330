"""Numbers that a dtype cannot hold raise eager's errors, also where the number is only known when the graph runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import minidynamo
from tests.pairs import pairs

MASK = torch.tensor([True, False])

# Functions of a number that may refuse the number.
TAKING: dict[str, Callable[[Any, Any], Any]] = {
    "full": lambda x, n: torch.full((2,), n, dtype=x.dtype),
    "new_full": lambda x, n: x.new_full((2,), n),
    "fill_": lambda x, n: x.clone().fill_(n),
    "masked_fill": lambda x, n: x.masked_fill(MASK, n),
    "where": lambda x, n: torch.where(MASK, x, n),
    "clamp": lambda x, n: x.clamp(min=n),
    "pad": lambda x, n: F.pad(x, (1, 1), value=n),
    "alpha": lambda x, n: torch.add(x, x, alpha=n),
    "value": lambda x, n: torch.addcmul(x, x, x, value=n),
    "plus": lambda x, n: x + n,
}
NUMBERS: dict[str, tuple[torch.dtype, list[Any]]] = {
    "bytes": (torch.uint8, [2, 3, 300, -7]),
    "bytes of floats": (torch.uint8, [2.5, 3.5, 300.5, -0.5]),
    "integers": (torch.int32, [2, 3, 2**40, -7]),
    "halves": (torch.float16, [2.5, 3.5, 70000.0, float("inf")]),
    "floats": (torch.float32, [2.5, 3.5, 1e300, float("-inf")]),
}


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        made = function(*args)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return made.dtype, made.tolist()


@pytest.mark.cpp
@pytest.mark.parametrize(
    "taking, numbers", pairs(TAKING, NUMBERS, full=["full", "clamp", "plus"], always=["bytes", "halves"])
)
def test_a_number_that_varies(taking: str, numbers: str) -> None:
    function, (dtype, values) = TAKING[taking], NUMBERS[numbers]
    compiled = minidynamo.compile(function, backend="native")
    x = torch.ones(2, dtype=dtype)
    for value in values:
        assert outcome(compiled, x, value) == outcome(function, x, value)


@pytest.mark.cpp
@pytest.mark.parametrize("number", [-0.5, -1.5, -7, 300])
def test_a_number_that_is_known(number: Any) -> None:
    def function(x: Any) -> Any:
        return F.pad(x, (1, 1), value=number)

    def scalar(x: Any) -> Any:
        return x + torch.scalar_tensor(number, dtype=x.dtype)

    x = torch.ones(2, dtype=torch.uint8)
    for program in (function, scalar):
        assert outcome(minidynamo.compile(program, backend="native"), x) == outcome(program, x)


@pytest.mark.cpp
@pytest.mark.parametrize("number", [-1.5, 300, 1e30, True, 7])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bool, torch.int64])
def test_a_number_in_a_tensor(dtype: torch.dtype, number: Any) -> None:
    def function(x: Any, value: Any) -> Any:
        return x.masked_fill(MASK, value)

    args = torch.ones(2, dtype=dtype), torch.tensor(number)
    assert outcome(minidynamo.compile(function, backend="native"), *args) == outcome(function, *args)
