"""Owns the elementwise operations for which torch has several CPU kernels with different results.

Eager's choice depends on layout, dtype and processor; the formula here is that of the chosen kernel. If a single call
uses two kernels, the first for vectors and the second for the elements left over, the call stays torch's own, or the
formula is that of the vectors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from minidynamo.codegen.ir.index import row_major
from minidynamo.codegen.ir.loops import Buffer
from minidynamo.codegen.ir.size import Extent, hint, known_at_least, product
from minidynamo.codegen.lowering.builder import Builder
from minidynamo.codegen.lowering.formula import (
    NotLowered,
    Number,
    V,
    erf,
    erf_by_rational,
    gelu,
    gelu_backward,
    gelu_by_onednn,
    is_half,
)
from minidynamo.codegen.lowering.pointwise import Row, lower_row, whole_division
from minidynamo.codegen.lowering.registry import Value, lowering


def in_order(x: Buffer | None, order: tuple[int, ...] | None = None) -> bool:
    """Returns whether the elements of a tensor are contiguous, with its dimensions in `order` (default: row-major)."""
    if x is None:
        return False
    dims = order or tuple(range(len(x.shape)))
    shape: list[Extent] = [x.shape[d] for d in dims]
    strides = zip(shape, [x.stride[d] for d in dims], row_major(shape))
    return all(size == 1 or stride == dense for size, stride, dense in strides)


REMAINDERS = {name: Row(whole_division(name), rounds=True) for name in ("fmod", "remainder")}


def _remainder(name: str, builder: Builder, a: Value | V | Number, b: Value | V | Number) -> Value:
    """Lowers a remainder.

    If the quotient overflows, torch's vector kernels return NaN and its other kernels the remainder. The quotient
    cannot overflow for float16, and for known divisors of absolute value 1 or more; other cases stay torch's own.
    """
    dtype, is_large = builder.out.dtype, isinstance(b, (int, float)) and abs(b) >= 1
    if builder.device.type == "cpu" and dtype.is_floating_point and dtype != torch.float16 and not is_large:
        raise NotLowered
    return lower_row(REMAINDERS[name], builder, a, b)


for _name in REMAINDERS:
    lowering(_name)(functools.partial(_remainder, _name))


@lowering("erf")
def lower_erf(builder: Builder, x: Value) -> Value:
    """Computes the error function; for half types by the formula of torch's vectors."""
    return lower_row(Row(_erf_of(builder.out)), builder, x)


@lowering("gelu")
def lower_gelu(builder: Builder, x: Value, *, approximate: str = "none") -> Value:
    """Computes the Gaussian error linear unit, by the formula of the kernel that eager chooses for the layout of
    `x`."""
    if approximate == "none" and _taken_by_onednn(builder.operand_layouts[0]):
        return lower_row(Row(gelu_by_onednn), builder, x)
    return lower_row(Row(lambda x: gelu(x, approximate, _erf_within(builder))), builder, x)


@lowering("gelu_backward")
def lower_gelu_backward(builder: Builder, grad: Value, x: Value, *, approximate: str = "none") -> Value:
    """Computes the gradient of `gelu`."""
    return lower_row(Row(lambda grad, x: gelu_backward(grad, x, approximate, _erf_within(builder))), builder, grad, x)


def _erf_within(builder: Builder) -> Callable[[V], V]:
    """Returns the error function inside `gelu`: the vector form if eager reads most elements in vectors.

    Eager does so if all tensors have the same memory order, and enough elements.
    """
    out = builder.out
    order = tuple(sorted(range(len(out.shape)), key=lambda d: (-hint(out.stride[d]), d)))
    by_vectors = known_at_least(product(out.shape), 64) and all(
        in_order(x, order) for x in (out, *builder.operand_layouts)
    )
    return _erf_of(builder.out) if by_vectors else erf


def _erf_of(out: Buffer) -> Callable[[V], V]:
    if out.device.type == "cpu" and is_half(out.dtype) and _halves_lose_small_values():
        return erf_by_rational
    return erf


@functools.cache
def _halves_lose_small_values() -> bool:
    """Returns whether torch's kernels on this processor compute the error function of half types by
    `erf_by_rational`."""
    return bool(torch.full((1,), 2.0**-24, dtype=torch.float16, device="cpu").erf().eq(0))


def _taken_by_onednn(x: Buffer | None) -> bool:
    """Returns whether eager passes `gelu` of a tensor to oneDNN, and oneDNN has kernels for this processor."""
    if x is None or x.device.type != "cpu" or x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    if not in_order(x) or not known_at_least(product(x.shape), 2):
        return False
    probe = torch.full((2,), math.inf, dtype=x.dtype, device="cpu")
    return bool(torch.nn.functional.gelu(probe).isnan().all())


@functools.cache
def large_means_are_lost(n: int, dtype: torch.dtype) -> bool:
    """Returns whether torch's CPU layer norm returns NaN for rows of `n` elements if the square of their mean
    overflows.

    Torch squares the means of vectors to join them; whether it does depends on the number of elements after the last
    full vector.
    """
    row = torch.full((1, n), torch.finfo(dtype).max / 4, dtype=dtype, device="cpu")
    return bool(torch.native_layer_norm(row, (n,), None, None, 0.0)[2].isnan())
