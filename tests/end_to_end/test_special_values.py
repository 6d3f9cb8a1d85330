"""Tests of compiled kernels on values that tell formulas apart: infinities, the largest numbers, half types that are
rounded on the way. All are as eager's kernels make them."""

import math

import pytest
import torch
import torch.nn.functional as F

import minidynamo

INF, NAN = math.inf, math.nan


def same(made, expected):
    torch.testing.assert_close(made, expected, equal_nan=True)
    assert made.stride() == expected.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float16], ids=str)
def test_gelu_of_the_largest_numbers_hangs_on_the_layout(dtype):
    """Eager takes oneDNN's kernel for dense float tensors of two and more elements."""
    largest = torch.finfo(dtype).max
    values = torch.tensor([INF, -INF, NAN, largest, -largest, largest / 4, -0.0, 1.5], dtype=dtype)
    pairs = values.repeat(2, 1)
    layouts = [values, pairs, pairs.mT.contiguous().mT, pairs[:, ::2], pairs[:, 1:], values[:1], values[3:4], values[3]]

    def program(given):
        return [F.gelu(x, approximate=how) for x in given for how in ("none", "tanh")]

    for dynamic in (False, True):
        compiled = minidynamo.compile(program, dynamic=dynamic, fullgraph=True)
        for made, expected in zip(compiled(layouts), program(layouts), strict=True):
            same(made, expected)


LABELS = torch.tensor([0, 2, 1, 2] * 4)
ROUNDED = {
    "log_softmax of rows": lambda x: x.log_softmax(-1),
    "log_softmax of columns": lambda x: x.log_softmax(0),
    "logsumexp": lambda x: x.logsumexp(-1),
    "logsumexp of columns": lambda x: x.logsumexp(0, keepdim=True),
    "prod": lambda x: (x * 0.3 + 1).prod(1),
    "cross_entropy": lambda x: F.cross_entropy(x, LABELS),
    "cross_entropy in sum": lambda x: F.cross_entropy(x.view(4, 3, 4, 3)[..., 0], LABELS.view(4, 4), reduction="sum"),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types_are_rounded_where_eager_rounds_them(dtype):
    """Bit for bit, but for elements that lie between two numbers within the error of `exp` and of sums."""
    torch.manual_seed(0)
    x = (torch.randn(16, 9) * 2).to(dtype)

    def program(x):
        return {name: function(x) for name, function in ROUNDED.items()}

    made, expected = minidynamo.compile(program, fullgraph=True)(x), program(x)
    assert [name for name in ROUNDED if made[name].ne(expected[name]).float().mean() > 0.02] == []
