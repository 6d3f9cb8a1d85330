"""Owns the ATen operations that create a tensor from numbers and indices.

Nothing here reads memory. Tensors of random numbers are extern calls, because torch's generators define their values.
"""

from __future__ import annotations

from typing import Any

from minidynamo.codegen.ir.size import Extent, is_extent
from minidynamo.codegen.lowering.builder import Builder
from minidynamo.codegen.lowering.dtypes import converted
from minidynamo.codegen.lowering.formula import NotLowered, Number, V, number, opmath
from minidynamo.codegen.lowering.registry import Value, lowering


def filled(builder: Builder, value: V | Number) -> Value:
    """Fills a tensor in the layout of the result with a number."""
    fill_value = converted(builder, value, builder.out.dtype)
    return builder.compute(builder.out.shape, lambda _: fill_value)


@lowering("full", "full_like", "new_full", "scalar_tensor")
def lower_full(builder: Builder, *args: Any, **kwargs: Any) -> Value:
    """Fills a tensor with a number, the last argument; the sizes are arguments, or those of a tensor."""
    return filled(builder, args[-1])


@lowering("fill")
def lower_fill(builder: Builder, x: Value, value: V | Number | Value) -> Value:
    """Overwrites `x` with a number or a 0-dim tensor."""
    if isinstance(value, Value):
        return builder.compute(x.shape, lambda at: builder.element(value, at), builder.out.dtype)
    return filled(builder, value)


@lowering("zeros", "zeros_like", "new_zeros", "zero")
def lower_zeros(builder: Builder, *args: Any, **kwargs: Any) -> Value:
    """Fills a tensor with zeros."""
    return filled(builder, 0)


@lowering("ones", "ones_like", "new_ones")
def lower_ones(builder: Builder, *args: Any, **kwargs: Any) -> Value:
    """Fills a tensor with ones."""
    return filled(builder, 1)


@lowering("arange")
def lower_arange(builder: Builder, *bounds: V | Number, **kwargs: Any) -> Value:
    """Computes a range from start, end and step, as Python's range."""
    start, step = bounds[0] if len(bounds) > 1 else 0, bounds[2] if len(bounds) > 2 else 1
    return _progression(builder, start, step)


@lowering("prims.iota")
def lower_iota(builder: Builder, length: Extent, *, start: Extent = 0, step: Extent = 1, **kwargs: Any) -> Value:
    """Computes `length` integers from `start`."""
    return _progression(builder, start, step)


def _progression(builder: Builder, start: V | Number, step: V | Number) -> Value:
    # Eager's rounding of fractional steps depends on how it splits the range over threads.
    if not (is_extent(start) and is_extent(step)):
        raise NotLowered
    result_dtype = builder.out.dtype
    return builder.compute(
        builder.out.shape, lambda at: number(at[0] * step + start).to(opmath(result_dtype)), result_dtype
    )


@lowering("eye")
def lower_eye(builder: Builder, rows: int, columns: int | None = None, **kwargs: Any) -> Value:
    """Sets ones on the diagonal."""
    return builder.compute(builder.out.shape, lambda at: number(at[0]).eq(number(at[1])), builder.out.dtype)
