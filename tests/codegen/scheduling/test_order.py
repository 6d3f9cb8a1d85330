"""Tests of minidynamo/codegen/scheduling/order.py: the order of pointwise loop nests among extern calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import minidynamo.testing
from minidynamo.codegen.ir.loops import Kernel, Loops
from minidynamo.codegen.scheduling.order import reorder
from tests.codegen.graphs import check, lower, scheduled

HALF = torch.bfloat16


def order(function: Callable[..., Any], *args: Any) -> list[str]:
    """Returns the names of the loop nests and products of a program after `reorder`, in order."""
    nodes = reorder(lower(function, *args)).nodes
    return [node.out.name if isinstance(node, Loops) else node.out for node in nodes]


def steps(function: Callable[..., Any], *args: Any) -> list[str]:
    """Returns what the host program runs, in order: "kernel", or the operator."""
    return ["kernel" if isinstance(step, Kernel) else str(step.op) for step in scheduled(function, *args)]


def early(x: Tensor) -> tuple[Tensor, ...]:
    a = x @ x
    return x @ a.t(), x.relu() @ x, a * 2


def gate(x: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    """The gradient of an activation, after a product that needs the activation again."""
    from_above = grad @ x
    again = torch.nn.functional.gelu(x)
    return again.t() @ grad, torch.ops.aten.gelu_backward(from_above, x) @ grad


def late(x: Tensor) -> tuple[Tensor, ...]:
    first = (x @ x).float()
    second = x @ x.t()
    return (first + second.float(),)


def sums(x: Tensor) -> tuple[Tensor, ...]:
    parts = [x @ x, x @ x.t(), x.t() @ x]
    total = parts[0].float() + parts[1].float()
    last = parts[2] @ x
    return (total + last.float(),)


X = torch.randn(128, 128)


def test_an_activation_and_its_gradient_share_a_kernel():
    assert steps(gate, X, X) == ["aten.mm.default", "kernel", "aten.t.default", "aten.mm.default", "aten.mm.default"]
    check(gate, X / 16, X / 16)


def test_a_wider_copy_is_made_where_it_is_read():
    x = X.to(HALF)
    assert steps(late, x) == ["aten.mm.default", "aten.t.default", "aten.mm.default", "kernel"]
    check(late, x)


def test_a_returned_value_and_a_larger_one_stay():
    assert order(early, X)[-1] == "mul"

    def larger(x: Tensor) -> Tensor:
        a = x[:64] @ x
        b = x @ x
        return (a.sum(0) + a).repeat(2, 1) * b

    assert order(larger, X).index("mm_1") < order(larger, X).index("repeat")


def test_inputs_do_not_live_longer():
    def function(x: Tensor, y: Tensor) -> Tensor:
        wide = x.float()
        return wide * (y @ y)

    names = order(function, X.to(HALF), X)
    assert names == ["_to_copy", "mm", "mul"]


@pytest.mark.parametrize("backend", ["native", pytest.param("triton", marks=pytest.mark.slow)])
def test_values_that_the_program_overwrites(backend: str) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a = (y @ y) + x
        x.mul_(2)
        b = y @ a
        return b, a * x

    minidynamo.testing.assert_same_as_eager(function, lambda: (X.clone(), X.clone()), backend=backend)
