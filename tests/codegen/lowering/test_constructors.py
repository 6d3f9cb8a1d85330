"""Tensors created from numbers, against eager."""

import pytest
import torch

from minidynamo.codegen.ir.loops import Extern
from tests.codegen.graphs import check, lower

X = torch.ones(3, 4)


@pytest.mark.cpp
def test_constructors_equal_eager():
    check(
        lambda x: (
            torch.full((2, 3), 7), torch.full_like(x, 0.1), x.new_full((2,), 3), torch.zeros(2, dtype=torch.int32),
            torch.ones_like(x, dtype=torch.bfloat16), x.new_zeros(4), torch.scalar_tensor(2.5), torch.eye(3, 4),
            torch.arange(5), torch.arange(2, 9, 3), torch.arange(9, 2, -3), torch.arange(4, dtype=torch.float32),
            torch.full_like(x, True, dtype=torch.bool), torch.ops.aten.fill.Scalar(x, 2),
            torch.ops.aten.fill.Tensor(x, torch.ones(())), torch.ops.prims.iota.default(
                4, start=1, step=2, dtype=torch.int64, device=x.device, requires_grad=False),
        ),
        X, exact=True,
    )  # fmt: skip


@pytest.mark.cpp
def test_they_are_inlined():
    assert len(check(lambda x: x + torch.arange(4) * torch.full((3, 4), 2.0), X).program.kernels) == 1


def test_fractional_steps_are_left_to_torch():
    program = lower(lambda x: x + torch.arange(0, 1, 0.25), X)
    assert isinstance(program.nodes[0], Extern)
