"""Accuracy of the elementary functions of vecmath.h against double precision, special values, and conversions."""

import math

import pytest
import torch

from minidynamo.codegen.runtime import library

pytestmark = pytest.mark.cpp

# Function -> the same function in double, and the interval with most samples.
FUNCTIONS = {
    "exp": (torch.exp, (-105, 90)),
    "exp2": (torch.exp2, (-151, 129)),
    "expm1": (torch.expm1, (-20, 90)),
    "tanh": (torch.tanh, (-10, 10)),
    # zero where e^-x is too large for a float
    "sigmoid": (lambda x: torch.sigmoid(x) * torch.exp(-x).float().isfinite(), (-104, 30)),
    "log": (torch.log, (0, 3)),
    "log2": (torch.log2, (0, 3)),
    "log10": (torch.log10, (0, 12)),
    "log1p": (torch.log1p, (-1, 2)),
    "erf": (torch.erf, (-4.5, 4.5)),
    "sin": (torch.sin, (-700, 700)),
    "cos": (torch.cos, (-700, 700)),
    "tan": (torch.tan, (-10, 10)),
    "sqrt": (torch.sqrt, (0, 100)),
    "asin": (torch.asin, (-1, 1)),
    "atan": (torch.atan, (-5, 5)),
    "sinh": (torch.sinh, (-5, 5)),
}
SAMPLES = 140_000
SPECIALS = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 3.4028235e38, -3.4028235e38, 1.0, -1.0, 1e-38, 0.5]


def source() -> str:
    loops = [
        f"ENTRY({name}) {{\n  auto* x = memory<const float>(args[0]);\n  auto* out = memory<float>(args[1]);\n"
        f"  #pragma omp simd\n  for (int64_t i = 0; i < {SAMPLES}; i++) out[i] = m_{name}(x[i]);\n"
        "  return none();\n}\n"
        for name in FUNCTIONS
    ]
    power = (
        "ENTRY(power) {\n  auto* x = memory<const float>(args[0]);\n  auto* y = memory<const float>(args[1]);\n"
        "  auto* out = memory<float>(args[2]);\n  #pragma omp simd\n"
        f"  for (int64_t i = 0; i < {SAMPLES}; i++) out[i] = m_pow(x[i], y[i]);\n  return none();\n}}\n"
    )
    halves = [
        f"ENTRY(round_{kind}) {{\n  auto* x = memory<const float>(args[0]);\n  auto* out = memory<{kind}>(args[1]);\n"
        f"  auto* back = memory<float>(args[2]);\n  #pragma omp simd\n"
        f"  for (int64_t i = 0; i < {SAMPLES}; i++) {{ out[i] = to_{kind}(x[i]); back[i] = to_float(out[i]); }}\n"
        "  return none();\n}\n"
        for kind in ("half", "bfloat16")
    ]
    return '#include "vecmath.h"\n' + "".join([*loops, power, *halves])


@pytest.fixture(scope="module")
def entries():
    return library.load(source(), [*FUNCTIONS, "power", "round_half", "round_bfloat16"])


def any_float(count: int) -> torch.Tensor:
    """Floats with random bits: all exponents, NaN and infinity included."""
    return torch.randint(-(2**31), 2**31, (count,), dtype=torch.int64).to(torch.int32).view(torch.float32)


def samples(low: float, high: float) -> torch.Tensor:
    near = torch.empty(SAMPLES // 2).uniform_(low, high)
    x = torch.cat([near, any_float(SAMPLES // 2)])
    x[: len(SPECIALS)] = torch.tensor(SPECIALS)
    return x


def ulps(got: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Returns the distance in units of the last place of the float nearest to `exact`; infinite for different kinds."""
    rounded = exact.float()
    exponent = torch.frexp(rounded.double().abs().clamp(min=2.0**-126)).exponent
    distance = (got.double() - exact).abs() / torch.ldexp(torch.ones_like(exact), exponent - 24)
    same = (got == rounded) | (got.isnan() & rounded.isnan())
    # Next to the largest float, rounding to infinity is an error of one unit.
    distance = torch.where(got.isinf() & ~rounded.isinf() & (rounded.abs() > 3.4028e38), 1.0, distance)
    distance = torch.where(rounded.isinf() & ~got.isinf() & (got.abs() > 3.4028e38), 1.0, distance)
    return torch.where(same, 0.0, distance).nan_to_num(nan=math.inf)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_is_within_two_ulp(entries, name):
    exact, (low, high) = FUNCTIONS[name]
    x = samples(low, high)
    out = torch.empty(SAMPLES)
    entries[name](x, out)
    distance = ulps(out, exact(x.double()))
    worst = int(distance.argmax())
    assert distance[worst] <= 2.0, f"{name}({x[worst].item()!r}) = {out[worst].item()!r}: {distance[worst]:.2f} ulp"


@pytest.mark.parametrize("name", ["sin", "tanh", "expm1", "log1p", "erf", "tan"])
def test_zero_keeps_its_sign(entries, name):
    x = torch.full((SAMPLES,), -0.0)
    out = torch.empty(SAMPLES)
    entries[name](x, out)
    assert out.signbit().all() and (out == 0).all()


def test_power_is_within_two_ulp(entries):
    x, y = any_float(SAMPLES), any_float(SAMPLES)
    third = SAMPLES // 3
    x[:third].uniform_(0.5, 3)
    y[:third].uniform_(-60, 60)
    x[third : 2 * third].uniform_(-30, 30)
    y[third : 2 * third] = torch.randint(-20, 20, (third,))
    pairs = torch.cartesian_prod(torch.tensor(SPECIALS), torch.tensor([*SPECIALS, 2.0, 3.0, -3.0]))
    x[-len(pairs) :], y[-len(pairs) :] = pairs.unbind(1)
    out = torch.empty(SAMPLES)
    entries["power"](x, y, out)
    distance = ulps(out, x.double() ** y.double())
    worst = int(distance.argmax())
    assert distance[worst] <= 2.0, f"pow({x[worst].item()!r}, {y[worst].item()!r}) = {out[worst].item()!r}"


@pytest.mark.parametrize(("name", "dtype"), [("half", torch.float16), ("bfloat16", torch.bfloat16)])
def test_half_types_convert_as_torch_does(entries, name, dtype):
    x = samples(-70000, 70000)
    x[100 : 100 + 65536] = torch.arange(65536).to(torch.int32).sub(32768).to(torch.int16).view(dtype).float()
    out, back = torch.empty(SAMPLES, dtype=dtype), torch.empty(SAMPLES)
    entries[f"round_{name}"](x, out, back)
    finite = ~x.isnan()
    assert torch.equal(out[finite].view(torch.int16), x[finite].to(dtype).view(torch.int16))
    assert out[~finite].isnan().all()
    assert torch.equal(back[finite].view(torch.int32), out[finite].float().view(torch.int32))
    assert back[~finite].isnan().all()


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_next_to_multiples_of_a_quarter_turn(entries, name):
    k = torch.randint(1, 2**31, (SAMPLES,)).double() * 2.0 ** torch.randint(-31, 90, (SAMPLES,))
    x = (k.ceil() * (math.pi / 2)).float()
    # The float nearest to a multiple of pi/2, relative to its size.
    x[0] = 16367173 * 2.0**72
    out = torch.empty(SAMPLES)
    entries[name](x, out)
    exact = {"sin": torch.sin, "cos": torch.cos, "tan": torch.tan}[name](x.double())
    assert ulps(out, exact).max() <= 1.0
