"""The replacements for the device under Triton's interpreter: its math library, half types, checks."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from minidynamo.codegen.runtime import triton_launch
from minidynamo.codegen.runtime.triton_interpreter import fused_multiply_add
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1.0, 1e30, 1e-30])
def test_multiply_add_rounds_once(dtype, size):
    x, y = torch.randn(8, dtype=dtype), torch.randn(8, dtype=dtype)
    # The first sums cancel all but the lowest bits, the last sums are close to half of a last place.
    z = torch.cat([-(x * y)[:5], x[5:] * size])
    out = torch.empty_like(x)
    run("tl.store(d + i, libdevice.fma(tl.load(a + i), tl.load(b + i), tl.load(c + i)))", x, y, z, out)
    for *factors, result in zip(x.tolist(), y.tolist(), z.tolist(), out.tolist()):
        a, b, c = map(Fraction, factors)
        assert result == torch.tensor(nearest(a * b + c, dtype), dtype=dtype).item()


def nearest(exact: Fraction, dtype: torch.dtype) -> float:
    """Rounds to the nearest number of a dtype, ties to even."""
    exponent = math.frexp(float(exact))[1]
    step = Fraction(2) ** (exponent - (24 if dtype == torch.float32 else 53))
    return float(round(exact / step) * step)


def test_multiply_add_of_special_values():
    x = torch.tensor([1e300, -0.0, float("inf"), float("nan"), 0.0, -1e200], dtype=torch.float64)
    y = torch.tensor([10.0, 5.0, 0.0, 1.0, float("inf"), 1e200], dtype=torch.float64)
    z = torch.tensor([-1e300, -0.0, 1.0, 1.0, 1.0, float("inf")], dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        with np.errstate(all="ignore"):
            out = fused_multiply_add(x.to(dtype), y.to(dtype), z.to(dtype))
        plain = x.to(dtype) * y.to(dtype) + z.to(dtype)
        assert torch.equal(out.isnan(), plain.isnan())
        assert math.copysign(1, out[1]) == -1.0
        assert dtype == torch.float32 or math.isclose(out[0], 9e300)


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
