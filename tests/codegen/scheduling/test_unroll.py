"""Tests of minidynamo/codegen/scheduling/unroll.py: short sums as formulas."""

from __future__ import annotations

import torch
from torch import Tensor

from minidynamo.codegen.ir.loops import Kernel, Loops
from minidynamo.codegen.scheduling.schedule import optimize
from minidynamo.codegen.scheduling.unroll import MOST_UNROLLED, unroll
from tests.codegen.graphs import check, lower, scheduled


def shared_heads(x: Tensor, y: Tensor) -> Tensor:
    """The gradient of a head that several query heads share, in the order of dimensions of a projection."""
    grad = (x @ y).view(2, 3, 4, 5, 6)
    return grad.sum(2, keepdim=True).squeeze(2).transpose(1, 2).contiguous() * 2


HEADS = torch.randn(24, 5, 7), torch.randn(24, 7, 6)


def folds(function, *args) -> int:
    program = optimize(lower(function, *args, target="triton"), join=True)
    return sum(isinstance(node, Loops) and node.combine is not None for node in program.nodes)


def test_a_short_sum_joins_a_reader_with_another_order():
    assert folds(shared_heads, *HEADS) == 0
    assert sum(isinstance(step, Kernel) for step in scheduled(shared_heads, *HEADS, target="triton")) == 1
    check(shared_heads, *HEADS, target="triton")
    check(shared_heads, *(x.to(torch.bfloat16) for x in HEADS), target="triton")


def test_a_sum_of_negative_zeros_is_zero():
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(1).copysign(x[:, 0]).reciprocal(), x.sum(1).reciprocal()

    x = torch.full((3, 2), -0.0)
    assert folds(function, x) == 0
    assert check(function, x, target="triton").call([x])[1].tolist() == [float("inf")] * 3


def test_sums_that_share_a_kernel_with_other_nests_stay():
    def normalized(x: Tensor) -> Tensor:
        return x / x.sum(1, keepdim=True)

    def activated(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.sin()
        return y, y.sum(1)

    x = torch.randn(32, 4)
    for function in (normalized, activated):
        assert folds(function, x) == 1
        assert sum(isinstance(step, Kernel) for step in scheduled(function, x, target="triton")) == 1
        check(function, x, target="triton")
    assert folds(lambda x: x.sum(1) * 2, torch.randn(4, MOST_UNROLLED)) == 0
    assert folds(lambda x: x.sum(1) * 2, torch.randn(4, MOST_UNROLLED + 1)) == 1
    assert folds(lambda x: x.sum(1), torch.randn(4, 2)) == 1


def test_other_folds_stay():
    program = lower(lambda x: x.amax(1) * 2, torch.randn(4, 3), target="triton")
    assert unroll(program) == program
    program = lower(lambda x: x.sum(1) * 2, torch.randn(4, 3), target="cpp")
    assert unroll(program) == program
