"""Owns the ATen operations that only change how a tensor is addressed.

Each maps new coordinates to old coordinates, without copies or computations. Index-only operations that copy in eager
(flip, repeat) are here too, with a copy after the change of coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from minidynamo.codegen.ir.index import Index, as_index
from minidynamo.codegen.ir.size import Extent, derived, known_at_least, known_less
from minidynamo.codegen.lowering.builder import Builder
from minidynamo.codegen.lowering.formula import NotLowered, V
from minidynamo.codegen.lowering.registry import Value, lowering

ZERO = Index()

aten = torch.ops.aten
RESTRIDE = aten._reshape_alias.default
"""Views memory from the start of its argument, with sizes and strides."""
RESTRIDING = frozenset(
    (
        *(aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims),
        *(aten.squeeze.default, aten.expand.default, aten.t.default, aten.transpose.int, aten.permute.default),
        RESTRIDE,
    )
)
"""View operators whose result starts where their argument starts: the result is defined by its sizes and strides."""


def _dims(dims: int | Sequence[int], rank: int) -> list[int]:
    listed = [dims] if isinstance(dims, int) else list(dims)
    return [d % rank if rank else 0 for d in listed]


@lowering("view", "_unsafe_view", "reshape", "_reshape_alias", view=True)
def lower_view(builder: Builder, x: Value, shape: Any, *strides: Any) -> Value:
    """Views the same elements under another shape. A view as another dtype is an extern call."""
    if isinstance(shape, torch.dtype):
        raise NotLowered
    return x.reshape(builder.out.shape)


@lowering("alias", "detach", "lift_fresh", view=True)
def lower_alias(builder: Builder, x: Value) -> Value:
    """Returns the tensor itself."""
    return x


@lowering("permute", view=True)
def lower_permute(builder: Builder, x: Value, dims: Sequence[int]) -> Value:
    """Permutes dimensions."""
    order = _dims(dims, len(x.shape))
    return x.view([x.shape[d] for d in order], lambda new: [new[order.index(d)] for d in range(len(order))])


@lowering("transpose", view=True)
def lower_transpose(builder: Builder, x: Value, first: int, second: int) -> Value:
    """Exchanges two dimensions."""
    order = list(range(len(x.shape)))
    if order:
        a, b = _dims((first, second), len(order))
        order[a], order[b] = order[b], order[a]
    return lower_permute(builder, x, order)


@lowering("t", view=True)
def lower_t(builder: Builder, x: Value) -> Value:
    """Transposes a matrix; a tensor with fewer than two dimensions is unchanged."""
    return lower_permute(builder, x, tuple(reversed(range(len(x.shape)))))


@lowering("expand", view=True)
def lower_expand(builder: Builder, x: Value, size: Sequence[int], *, implicit: bool = False) -> Value:
    """Broadcasts to the size of the result."""
    return x.view(builder.out.shape, x.broadcast_coordinates)


@lowering("unsqueeze", view=True)
def lower_unsqueeze(builder: Builder, x: Value, dim: int) -> Value:
    """Adds a dimension of size 1."""
    at = dim % (len(x.shape) + 1)
    return x.view(builder.out.shape, lambda new: [*new[:at], *new[at + 1 :]])


@lowering("squeeze", view=True)
def lower_squeeze(builder: Builder, x: Value, dims: int | Sequence[int] | None = None) -> Value:
    """Removes dimensions of size 1: all, or those among `dims`."""
    rank = len(x.shape)
    candidates = range(rank) if dims is None else _dims(dims, rank)
    removed = {d for d in candidates if rank and x.shape[d] == 1}
    if rank - len(removed) != len(builder.out.shape):
        raise NotLowered

    def old(new: Sequence[Index]) -> list[Index]:
        rest = iter(new)
        return [ZERO if d in removed else next(rest) for d in range(rank)]

    return x.view(builder.out.shape, old)


def slice_start(start: Extent | None, step: Extent, size: Extent) -> Extent:
    """Returns the start of a slice of a dimension of `size`, for a slice that is not empty.

    Raises NotLowered if the sign of `start` is not known.
    """
    if isinstance(start, int) and isinstance(size, int) and isinstance(step, int):
        return slice(start, None, step).indices(size)[0]
    if start is None or known_at_least(start, 0):
        return start or 0
    if not known_less(start, 0):
        raise NotLowered
    return derived("max", size + start, 0, 0)


def index_from_start(index: Extent, size: Extent) -> Extent:
    """Returns an index into a dimension, counted from its start. Raises NotLowered if the sign is not known."""
    if not known_at_least(index, 0) and not known_less(index, 0):
        raise NotLowered
    return index if known_at_least(index, 0) else size + index


@lowering("slice", view=True)
def lower_slice(
    builder: Builder, x: Value, dim: int = 0, start: Extent | None = None, end: Extent | None = None, step: Extent = 1
) -> Value:
    """Selects every `step`-th element of a range along a dimension."""
    at = dim % len(x.shape)
    first = slice_start(start, step, x.shape[at])
    return x.view(builder.out.shape, lambda new: [*new[:at], new[at] * step + first, *new[at + 1 :]])


def narrow(x: Value, dim: int, start: Extent, length: Extent) -> Value:
    """Returns `length` elements from `start` along a dimension."""
    shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    return x.view(shape, lambda new: [*new[:dim], new[dim] + start, *new[dim + 1 :]])


@lowering("select", view=True)
def lower_select(builder: Builder, x: Value, dim: int, index: Extent) -> Value:
    """Selects an index of a dimension, and removes the dimension."""
    at = dim % len(x.shape)
    fixed = as_index(index_from_start(index, x.shape[at]))
    return x.view(builder.out.shape, lambda new: [*new[:at], fixed, *new[at:]])


@lowering("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", view=True)
def lower_split(builder: Builder, x: Value, sizes: Extent | Sequence[Extent], dim: int = 0) -> tuple[Value, ...]:
    """Splits a tensor into consecutive pieces along a dimension."""
    at = dim % len(x.shape)
    pieces = [result for result in builder.results if result is not None]
    if sizes == 0:
        raise NotLowered
    start: Extent = 0
    views: list[Value] = []
    for piece in pieces:
        views.append(narrow(x, at, start, piece.shape[at]))
        start = start + piece.shape[at]
    return tuple(views)


@lowering("unbind", view=True)
def lower_unbind(builder: Builder, x: Value, dim: int = 0) -> tuple[Value, ...]:
    """Returns a piece per index of a dimension, without the dimension."""
    at = dim % len(x.shape)
    shape = (*x.shape[:at], *x.shape[at + 1 :])

    def piece(k: int) -> Value:
        return x.view(shape, lambda new: [*new[:at], as_index(k), *new[at:]])

    return tuple(piece(k) for k in range(len(builder.results)))


@lowering("diagonal", view=True)
def lower_diagonal(builder: Builder, x: Value, offset: Extent = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """Selects a diagonal of two dimensions, as the last dimension."""
    a, b = _dims((dim1, dim2), len(x.shape))
    if not isinstance(offset, int):
        raise NotLowered

    def old(new: Sequence[Index]) -> list[Index]:
        rest = iter(new[:-1])
        special = {a: new[-1] + max(-offset, 0), b: new[-1] + max(offset, 0)}
        return [special[d] if d in special else next(rest) for d in range(len(x.shape))]

    return x.view(builder.out.shape, old)


def _copied(builder: Builder, x: Value) -> Value:
    return builder.compute(x.shape, lambda at: V(x.load(at)))


@lowering("flip")
def lower_flip(builder: Builder, x: Value, dims: Sequence[int]) -> Value:
    """Reverses dimensions."""
    reversed_dims = set(_dims(dims, len(x.shape)))
    flipped = x.view(
        x.shape, lambda new: [i * -1 + (x.shape[d] - 1) if d in reversed_dims else i for d, i in enumerate(new)]
    )
    return _copied(builder, flipped)


@lowering("repeat")
def lower_repeat(builder: Builder, x: Value, repeats: Sequence[int]) -> Value:
    """Repeats the tensor along its dimensions; leading dimensions may be new."""
    extra = len(repeats) - len(x.shape)
    if 0 in builder.out.shape:
        raise NotLowered
    return _copied(builder, x.view(builder.out.shape, lambda new: [i % n for i, n in zip(new[extra:], x.shape)]))
