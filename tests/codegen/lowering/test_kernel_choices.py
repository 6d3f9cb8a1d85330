"""The formula of elementwise operations for which torch has several kernels;
tests/end_to_end/torch/test_special_values.py compares the values."""

import math

import pytest
import torch
import torch.nn.functional as F

from minidynamo.codegen.ir.loops import Buffer, Extern
from minidynamo.codegen.lowering.kernel_choices import in_order
from tests.codegen.graphs import lower


@pytest.mark.parametrize(
    ("shape", "stride", "order", "expected"),
    [
        ((2, 3), (3, 1), None, True),
        ((2, 3), (1, 2), None, False),
        ((2, 3), (1, 2), (1, 0), True),
        ((2, 1, 3), (3, 77, 1), None, True),
        ((2, 3, 4, 5), (60, 1, 15, 3), (0, 2, 3, 1), True),
        ((2, 3), (6, 2), None, False),
        ((), (), None, True),
    ],
)
def test_order(shape, stride, order, expected):
    assert in_order(Buffer("x", shape, stride, torch.float32, torch.device("cpu")), order) == expected


def test_what_has_no_layout_is_not_in_order():
    assert not in_order(None)


@pytest.mark.parametrize(
    ("dtype", "divisor", "by_torch"),
    [
        (torch.float32, 1, False),
        (torch.float32, -2.5, False),
        (torch.float32, 0.999, True),
        (torch.float64, 0.0, True),
        (torch.bfloat16, 0.5, True),
        (torch.bfloat16, 3, False),
        (torch.float16, 1e-3, False),
        (torch.int64, 3, False),
    ],
)
@pytest.mark.parametrize("operation", [torch.fmod, torch.remainder])
def test_quotients_that_may_overflow_are_left_to_torch(operation, dtype, divisor, by_torch):
    x = torch.ones(4, dtype=dtype)
    assert isinstance(lower(lambda x: operation(x, divisor), x).nodes[0], Extern) == by_torch


def test_divisors_that_are_tensors_are_not_known():
    x = torch.ones(4)
    assert isinstance(lower(lambda x: torch.fmod(x, x), x).nodes[0], Extern)
    assert not isinstance(lower(lambda x: torch.fmod(x, x), x.half()).nodes[0], Extern)


def test_the_layout_chooses_the_kernel_of_gelu():
    x = torch.ones(64, 64, dtype=torch.float16)
    layouts = (x, x.mT, x[:, ::2], x[0, :63])
    by_vectors = ["'erf'" not in str(lower(F.gelu, given).nodes[-1]) for given in layouts]
    loses_small_values = bool(torch.full((), 2.0**-24).half().erf().eq(0))
    by_onednn = bool(F.gelu(torch.full((2,), math.inf).half()).isnan().all())
    assert by_vectors == [loses_small_values and not by_onednn, loses_small_values, False, False]


def test_the_default_device_changes_nothing():
    x = torch.ones(64, 64)
    expected = str(lower(F.gelu, x).nodes[-1])
    with torch.device("meta"):
        assert str(lower(F.gelu, x).nodes[-1]) == expected
