"""Owns the ATen operations that select elements: by the numbers in a tensor, by position, by joining tensors.

Reading through indices is lowered, with a check of every index; writing through indices is an extern call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from minidynamo.codegen.ir.expr import Expr, IndexValue, mask
from minidynamo.codegen.ir.index import Index, Lookup
from minidynamo.codegen.ir.loops import checks_kept
from minidynamo.codegen.ir.size import Extent, Size, known_at_least
from minidynamo.codegen.lowering.builder import Builder
from minidynamo.codegen.lowering.dtypes import converted
from minidynamo.codegen.lowering.formula import NotLowered, Number, V, apply, const, number, where
from minidynamo.codegen.lowering.registry import Coordinates, Value, add, broadcast_shape, lowering
from minidynamo.codegen.lowering.views import index_from_start, slice_start

MOST_JOINED = 8
"""The most tensors to join in a kernel: with more tensors, the comparisons per element cost more than a copy."""

LOSSES = frozenset({"nll_loss_forward", "nll_loss2d_forward"})
"""Operations that report a bad target, where the gather in their decomposition would report a bad index."""


def checked(position: V, size: Extent, *details: int, wrap: bool = False, check: str = "check_index") -> Index:
    """Returns `position` as a coordinate of a dimension of `size`, with a check that raises.

    `check` is the check in OPS; `details` are its other operands, such as the dimension. With `wrap`, negative
    positions count from the end.
    """
    position = position.to(torch.int64)
    if wrap:
        position = where(position < 0, position + size, position)
    return Index(((Lookup(apply(check, position, size, *details).expr, size), 1),))


def _checked_load(builder: Builder, x: Value, at: Coordinates) -> V:
    """Returns the element at `at`, a position with checked coordinates.

    Raises NotLowered where a kernel would drop a check: in a dimension of stride 0, or in an empty tensor.
    """
    if not all(known_at_least(size, 1) for size in x.shape):
        raise NotLowered
    loaded = x.load(at)
    if not _checks(at) <= checks_kept(loaded, builder.buffers):
        raise NotLowered
    return V(loaded)


def _checks(indices: Iterable[Index]) -> set[Expr]:
    return {check for index in indices for check in IndexValue(index, torch.int64).checks}


def _require_integers(index: Value) -> None:
    if index.dtype not in (torch.int32, torch.int64):
        raise NotLowered


@lowering("embedding")
def lower_embedding(builder: Builder, weight: Value, index: Value, *rest: Any) -> Value:
    """Selects rows of `weight`; the padding index and the other options change the gradient only."""
    _require_integers(index)

    def body(at: Coordinates) -> V:
        row = checked(V(index.load(at[:-1])), weight.shape[0])
        return _checked_load(builder, weight, (row, at[-1]))

    return builder.compute(builder.out.shape, body)


@lowering("index_select")
def lower_index_select(builder: Builder, x: Value, dim: int, index: Value) -> Value:
    """Selects slices of `x` along a dimension."""
    _require_integers(index)
    if not x.shape or len(index.shape) != 1:
        raise NotLowered
    along = dim % len(x.shape)
    check = "check_data" if along == 1 else "check_index"  # here ATen has a different kernel, with a different error

    def body(at: Coordinates) -> V:
        chosen = checked(V(index.load((at[along],))), x.shape[along], check=check)
        return _checked_load(builder, x, (*at[:along], chosen, *at[along + 1 :]))

    return builder.compute(builder.out.shape, body)


@lowering("gather")
def lower_gather(builder: Builder, x: Value, dim: int, index: Value, *, sparse_grad: bool = False) -> Value:
    """Selects an element of `x` per element of `index`, along a dimension."""
    _require_integers(index)
    if not x.shape or len(index.shape) != len(x.shape):  # an empty index may have any number of dimensions
        raise NotLowered
    along = dim % len(x.shape)
    check, details = ("check_target", ()) if builder.decomposed_from in LOSSES else ("check_gather", (along,))

    def body(at: Coordinates) -> V:
        chosen = checked(V(index.load(at)), x.shape[along], *details, check=check)
        return _checked_load(builder, x, (*at[:along], chosen, *at[along + 1 :]))

    return builder.compute(builder.out.shape, body)


@lowering("index")
def lower_index(builder: Builder, x: Value, indices: Sequence[Value | None]) -> Value:
    """Computes `x[indices]` with integer tensors in consecutive dimensions."""
    indexed = [d for d, i in enumerate(indices) if i is not None]
    tensors = [i for i in indices if i is not None]
    if any(i.dtype not in (torch.int32, torch.int64) for i in tensors) or indexed != list(
        range(indexed[0], indexed[-1] + 1)
    ):
        raise NotLowered
    shape = broadcast_shape(*(i.shape for i in tensors))
    first = indexed[0]
    subscript = functools.partial(checked, wrap=True, check="check_subscript")

    def body(at: Coordinates) -> V:
        inner = at[first : first + len(shape)]
        loaded = (V(i.broadcast_load(inner)) for i in tensors)
        chosen = [subscript(position, x.shape[d], k) for k, (d, position) in enumerate(zip(indexed, loaded))]
        return _checked_load(builder, x, (*at[:first], *chosen, *at[first + len(shape) :]))

    return builder.compute(builder.out.shape, body)


@lowering("cat")
def lower_cat(builder: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Joins tensors along a dimension."""
    dtype = builder.out.dtype
    parts = [t for t in tensors if t.shape != (0,) or len(builder.out.shape) == 1]
    if len(parts) > MOST_JOINED or not parts:
        raise NotLowered
    along = dim % len(builder.out.shape)

    def body(at: Coordinates) -> V:
        end: Extent = builder.out.shape[along]
        result: V | None = None
        for part in reversed(parts):
            end = end - part.shape[along]
            element = V(part.load((*at[:along], at[along] - end, *at[along + 1 :]))).to(dtype)
            if len(parts) > 1:
                inside = number(at[along]) >= end
                inside = inside & (number(at[along]) < end + part.shape[along])
                element = V(mask(element.expr, inside.expr))
                result = (
                    element if result is None else where(number(at[along]) < end + part.shape[along], element, result)
                )
            else:
                result = element
        assert result is not None
        return result

    return builder.compute(builder.out.shape, body, dtype)


@lowering("stack")
def lower_stack(builder: Builder, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Joins tensors along a new dimension in a kernel on a GPU; on a CPU, torch copies the tensors."""
    if builder.target != "triton":
        raise NotLowered
    along = dim % len(builder.out.shape)
    parts = [
        t.view((*t.shape[:along], 1, *t.shape[along:]), lambda at: (*at[:along], *at[along + 1 :])) for t in tensors
    ]
    return lower_cat(builder, parts, along)


@lowering("constant_pad_nd")
def lower_pad(builder: Builder, x: Value, pad: Sequence[int], value: V | Number = 0) -> Value:
    """Adds borders of a number to `x`; negative borders cut off."""
    if any(isinstance(n, Size) for n in pad):
        raise NotLowered
    # For uint8 eager raises an error for a negative number.
    if x.dtype == torch.uint8 and (isinstance(value, (V, Size)) or value < 0):
        raise NotLowered
    filling = converted(builder, value, builder.out.dtype)
    before = [0] * len(x.shape)
    for k in range(len(pad) // 2):
        along = len(x.shape) - 1 - k
        before[along] = pad[2 * k]
        cut = min(pad[2 * k], 0) + min(pad[2 * k + 1], 0)
        if cut < 0 and not known_at_least(x.shape[along] + cut, 0):  # eager raises an error
            raise NotLowered

    def body(at: Coordinates) -> V:
        old = [i - b for i, b in zip(at, before)]
        inside = const(True, torch.bool)
        for i, size, low, high in zip(old, x.shape, before, builder.out.shape):
            if low > 0:
                inside = inside & (number(i) >= 0)
            if not known_at_least(size - (high - low), 0):
                inside = inside & (number(i) < size)
        loaded = V(mask(x.load(old), inside.expr))
        return where(inside, loaded, filling)

    return builder.compute(builder.out.shape, body)


def lower_triangle(keep: Callable[[V, Number], V], builder: Builder, x: Value, diagonal: Number = 0) -> Value:
    """Keeps the part of a matrix on and below, or on and above, a diagonal."""
    return builder.compute(
        x.shape, lambda at: where(keep(number(at[-1]) - number(at[-2]), diagonal), V(x.load(at)), 0), builder.out.dtype
    )


add("tril", functools.partial(lower_triangle, V.__le__))
add("triu", functools.partial(lower_triangle, V.__ge__))


@lowering("select_scatter")
def lower_select_scatter(builder: Builder, x: Value, source: Value, dim: int, index: int) -> Value:
    """Replaces an index of a dimension of `x`."""
    along = dim % len(x.shape)
    chosen = index_from_start(index, x.shape[along])

    def body(at: Coordinates) -> V:
        inside = number(at[along]).eq(chosen)
        new = V(mask(source.load((*at[:along], *at[along + 1 :])), inside.expr))
        return where(inside, new.to(x.dtype), V(x.load(at)))

    return builder.compute(x.shape, body)


@lowering("slice_scatter")
def lower_slice_scatter(
    builder: Builder,
    x: Value,
    source: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    """Replaces a slice along a dimension of `x`."""
    along = dim % len(x.shape)
    first = slice_start(start, step, x.shape[along])
    length = source.shape[along]
    if not isinstance(step, int):
        raise NotLowered

    def body(at: Coordinates) -> V:
        shifted = at[along] - first
        inside = (number(shifted) >= 0) & (number(shifted) < length * step)
        if step > 1:
            inside = inside & apply("remainder", number(shifted), step).eq(0)
        new = V(mask(source.load((*at[:along], shifted // step, *at[along + 1 :])), inside.expr))
        return where(inside, new.to(x.dtype), V(x.load(at)))

    return builder.compute(x.shape, body)
