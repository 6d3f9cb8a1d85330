"""Tests of minidynamo/codegen/lowering/duplicates.py: calls that repeat an earlier call share its result, where this
takes no more memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import minidynamo.testing
from minidynamo.codegen.ir.loops import Loops
from tests.codegen.graphs import check, lower

HALF = torch.bfloat16


def converted(x: Tensor, *weights: Tensor) -> list[Tensor]:
    return [x.to(HALF) @ w for w in weights]


def used_in_full_between(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    x = x * 2
    first = x.to(HALF) @ w
    return first, x @ x.t(), x.to(HALF) @ v


def widened(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    x = x.to(HALF) * 2
    return x.float() @ w.float(), x.float() @ v.float()


def alive_anyway(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    first, second = x.to(HALF), x.to(HALF)
    return first @ w, second @ v, first @ v


def returned(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return (x * 2).to(HALF), (x * 2).to(HALF)


def overwritten(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    first = x.to(HALF) @ w
    x.mul_(2)
    return first, x.to(HALF) @ v


def other_zero(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    return (x * 0.0).to(HALF) @ w, (x * -0.0).to(HALF) @ v


def conversions(function: Callable[..., Any], *args: Any) -> int:
    """Returns the number of conversions that the loop program computes."""
    nodes = [node for node in lower(function, *args).nodes if isinstance(node, Loops)]
    return sum(origin.op == "to_copy" for node in nodes for origin in node.origins)


@pytest.mark.parametrize(
    ("function", "count"),
    [
        (lambda x, *weights: converted(x * 2, *weights), 1),
        (converted, 2),  # the caller keeps x in any case: a shared result is more memory between the products
        (alive_anyway, 1),
        (used_in_full_between, 2),
        (widened, 5),  # a shared result is more memory than x; three other conversions
        (returned, 2),
        (other_zero, 2),
    ],
)
def test_conversions_of_the_same_tensor(function: Callable[..., Sequence[Tensor]], count: int) -> None:
    inputs = torch.randn(8, 8), torch.randn(8, 8, dtype=HALF), torch.randn(8, 8, dtype=HALF)
    assert conversions(function, *inputs) == count
    check(function, *inputs)


def test_a_tensor_that_the_program_overwrites_is_converted_again() -> None:
    inputs = torch.randn(8, 8), torch.randn(8, 8, dtype=HALF), torch.randn(8, 8, dtype=HALF)
    assert conversions(overwritten, *inputs) == 2
    minidynamo.testing.assert_same_as_eager(overwritten, lambda: tuple(x.clone() for x in inputs), backend="native")


def test_three_conversions_are_one() -> None:
    def function(x: Tensor, *weights: Tensor) -> list[Tensor]:
        return converted(torch.nn.functional.layer_norm(x, (8,)), *weights)

    weights = [torch.randn(8, 8, dtype=HALF) for _ in range(3)]
    assert conversions(function, torch.randn(8, 8), *weights) == 1
    check(function, torch.randn(8, 8), *weights)
