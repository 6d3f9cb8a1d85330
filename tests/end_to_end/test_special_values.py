"""Tests of compiled kernels on infinities, NaN and the largest numbers: values as eager's kernels make them."""

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
