"""The replacements for the device under Triton's interpreter: its math library, half types, checks."""

import math

import numpy as np
import pytest
import torch

from minidynamo.codegen.runtime import triton_launch
from minidynamo.codegen.runtime.triton_launch import LaunchSpec


def run(body: str, *tensors: torch.Tensor) -> None:
    parameters = ", ".join("abcd"[: len(tensors)])
    source = f"@jit\ndef kernel({parameters}, ROWS: tl.constexpr):\n    i = tl.arange(0, ROWS)\n    {body}\n"
    pointers = tuple((name, "*") for name in parameters.split(", "))
    spec = LaunchSpec("kernel", pointers, 8, 8, 0, 4, False)
    functions = triton_launch._functions(source, [spec], interpret=True)
    triton_launch._interpreted(functions["kernel"], spec)(*tensors)


def test_the_math_library_is_that_of_torch():
    x, out = torch.rand(8), torch.empty(8)
    run("tl.store(b + i, libdevice.erf(tl.load(a + i)))", x, out)
    torch.testing.assert_close(out, x.erf())


def test_two_operands():
    x, y, out = torch.rand(8), torch.rand(8), torch.empty(8)
    run("tl.store(c + i, libdevice.atan2(tl.load(a + i), tl.load(b + i)))", x, y, out)
    torch.testing.assert_close(out, torch.atan2(x, y))


def test_multiply_add_keeps_the_low_bits_of_the_product():
    x, y, out = torch.rand(8), torch.rand(8), torch.empty(8)
    z = -(x * y)
    run("tl.store(d + i, libdevice.fma(tl.load(a + i), tl.load(b + i), tl.load(c + i)))", x, y, z, out)
    assert torch.equal(out, (x.double() * y + z).float()) and out.any()


def test_bfloat16_is_rounded_to_nearest():
    x, out = torch.randn(8), torch.empty(8, dtype=torch.bfloat16)
    run("tl.store(b + i, to_bfloat16(tl.load(a + i)))", x, out)
    assert torch.equal(out, x.bfloat16())
    back = torch.empty(8)
    run("tl.store(b + i, from_bfloat16(tl.load(a + i)))", out, back)
    assert torch.equal(back, out.float())


@pytest.mark.parametrize("bad", [-1, 5])
def test_a_bad_index_raises_what_torch_raises(bad):
    index, out = torch.zeros(8, dtype=torch.int64), torch.empty(8, dtype=torch.int64)
    index[3] = bad
    with pytest.raises(IndexError, match="out of range in self"):
        run("tl.store(b + i, check_index(tl.load(a + i), 5, i < 4), i < 4)", index, out)


def test_a_masked_index_is_not_checked():
    index, out = torch.zeros(8, dtype=torch.int64), torch.empty(8, dtype=torch.int64)
    index[4:] = 99
    run("tl.store(b + i, check_index(tl.load(a + i), 5, i < 4), i < 4)", index, out)
    assert out[:4].tolist() == [0] * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_remainders_whose_quotient_overflows(dtype):
    x = torch.tensor([torch.finfo(dtype).max, -1.5, 5.5, math.inf, 1.0, -0.0, 2.0, math.nan], dtype=dtype)
    y = torch.tensor([3e-30, torch.finfo(dtype).tiny, -2.0, 2.0, math.inf, 1.0, 0.0, 1.0], dtype=dtype)
    out, quotients = torch.empty_like(x), torch.empty_like(x)
    run("tl.store(c + i, libdevice.fmod(tl.load(a + i), tl.load(b + i)))", x, y, out)
    with np.errstate(invalid="ignore"):
        rest = torch.from_numpy(np.fmod(x.numpy(), y.numpy()))
    torch.testing.assert_close(out, rest, rtol=0, atol=0, equal_nan=True)
    run("tl.store(c + i, floordiv_float(tl.load(a + i), tl.load(b + i)))", x, y, quotients)
    torch.testing.assert_close(quotients, x // y, equal_nan=True)
