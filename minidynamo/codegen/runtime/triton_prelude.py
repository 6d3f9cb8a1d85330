# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
"""Owns the device functions that printed Triton kernels call for operations that Triton lacks.

They are plain functions here; `triton_launch` turns them into device functions, for a GPU or for Triton's interpreter,
and binds `tl` and `libdevice`.
"""

import triton.language as tl
from triton.language.extra import libdevice

# ---- elements ----


def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


def sign(x):
    return (x > 0).to(x.dtype) - (x < 0).to(x.dtype)


def floordiv_int(a, b):
    quotient = a // b  # rounds to zero on the device
    return tl.where((quotient * b != a) & ((a < 0) != (b < 0)), quotient - 1, quotient)


def remainder_int(a, b):
    rest = a % b  # sign of the dividend on the device
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def remainder_float(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


def floordiv_float(a, b):
    rest = libdevice.fmod(a, b)
    quotient = divide(a - rest, b)
    quotient = tl.where((rest != 0) & ((rest < 0) != (b < 0)), quotient - 1, quotient)
    down = tl.floor(quotient)
    down = tl.where(quotient - down > 0.5, down + 1, down)
    ratio = divide(a, b)
    down = tl.where(quotient == 0, libdevice.copysign(down * 0, ratio), down)
    return tl.where(b == 0, ratio, down)


def divide(a, b):
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    else:
        return a / b


def square_root(x):
    if x.dtype == tl.float32:
        return tl.sqrt_rn(x)
    else:
        return tl.sqrt(x)


def reciprocal(x):
    return divide(tl.full([], 1, x.dtype), x)


def sigmoid(x):
    return reciprocal(1 + libdevice.exp(-x))


def power_int(base, exponent):
    one = tl.full([], 1, base.dtype)
    minus_one = base + one == 0
    inverse = ((base == one) | minus_one).to(base.dtype)
    inverse = tl.where(minus_one & (exponent % 2 != 0), 0 - one, inverse)
    result = tl.where(exponent < 0, inverse, one)
    rest = tl.where(exponent < 0, 0 * one, exponent)
    for _ in range(base.dtype.primitive_bitwidth):
        result = tl.where(rest % 2 != 0, (result * base).to(result.dtype), result)
        base = (base * base).to(result.dtype)
        rest = (rest // 2).to(result.dtype)
    return result


def shift_left(a, by, width):
    inside = (by >= 0) & (by < width)
    return tl.where(inside, a << tl.where(inside, by, 0), 0).to(a.dtype)


def shift_right(a, by, width):
    inside = (by >= 0) & (by < width)
    sign = tl.where(a < 0, -1, 0).to(a.dtype)
    return tl.where(inside, a >> tl.where(inside, by, 0).to(a.dtype), sign)


def check_index(index, size, mask):
    inside = (index >= 0) & (index < size)
    tl.device_assert(inside | (mask == 0), "index out of range in self")
    return tl.where(inside, index, 0)


def to_bfloat16(x):
    return x.to(tl.bfloat16)


def from_bfloat16(x):
    return x.to(tl.float32)


# ---- rows: folds over the second axis of a tile, which stays with size 1 ----


def add(a, b):
    return a + b


def multiply(a, b):
    return a * b


def greater(a, at, b, bt):
    """Returns the larger of two values with its position, NaN above all; of equal values the one at the first
    position."""
    take = (b > a) | ((b != b) & (a == a)) | (((a == b) | ((a != a) & (b != b))) & (bt < at))
    return tl.where(take, b, a), tl.where(take, bt, at)


def smaller(a, at, b, bt):
    """Returns the smaller of two values with its position, NaN below all; of equal values the one at the first
    position."""
    take = (b < a) | ((b != b) & (a == a)) | (((a == b) | ((a != a) & (b != b))) & (bt < at))
    return tl.where(take, b, a), tl.where(take, bt, at)


def row_sum(x):
    return tl.reduce(x, 1, add, keep_dims=True)


def row_prod(x):
    return tl.reduce(x, 1, multiply, keep_dims=True)


def row_max(x):
    return tl.reduce(x, 1, maximum, keep_dims=True)


def row_min(x):
    return tl.reduce(x, 1, minimum, keep_dims=True)


def row_argmax(x, position):
    _, found = tl.reduce((x, position), 1, greater, keep_dims=True)
    return found


def row_argmin(x, position):
    _, found = tl.reduce((x, position), 1, smaller, keep_dims=True)
    return found
