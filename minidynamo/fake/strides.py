"""Owns arithmetic on strides: whether elements fill their memory, and whether two sets of offsets overlap.

The callers define the unit of offsets, and the data stored there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from minidynamo.graph.unbacked_symints import hint_of

Dims = list[tuple[Any, Any]]
"""(stride, size) of each dimension; no stride is below 1."""


def reach(dims: Dims) -> Any:
    """Returns the distance from the first to the last offset."""
    return sum(stride * (size - 1) for stride, size in dims)


def may_meet(start: Any, dims: Dims, other_start: Any, other_dims: Dims) -> bool:
    """Returns whether two sets of offsets (`start` plus multiples of strides) may overlap.

    If a stride divides both sets into periods, and neither crosses the end of a period, the offsets in a period decide.
    """
    if start + reach(dims) < other_start or other_start + reach(other_dims) < start:
        return False
    for step in [stride for stride, _ in (*dims, *other_dims) if stride != 1]:
        inner = [dim for dim in dims if dim[0] < step]
        other_inner = [dim for dim in other_dims if dim[0] < step]
        offset, other_offset = start % step, other_start % step
        periodic = all(stride % step == 0 for stride, _ in (*dims, *other_dims) if stride >= step)
        if not periodic or offset + reach(inner) >= step or other_offset + reach(other_inner) >= step:
            continue
        if not may_meet(offset, inner, other_offset, other_inner):
            return False
    return True


def is_dense(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Returns whether elements fill their memory without gaps or overlaps, in some order of the dimensions."""
    step = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides) if size != 1):
        if stride != step:
            return False
        step *= size
    return True


def dense_strides(
    order: Sequence[int], shape: Sequence[Any], at_least: Callable[[Any, int], Any] = max
) -> tuple[Any, ...]:
    """Returns the strides of a tensor without gaps whose dimensions, from the innermost on, are `order`.

    torch counts an empty dimension as one: `at_least` is the maximum of a size and 1.
    """
    strides: list[Any] = [1] * len(shape)
    step: Any = 1
    for dim in order:
        strides[dim] = step
        step = step * at_least(shape[dim], 1)
    return tuple(strides)


def elementwise_strides(result: torch.Tensor, operands: Sequence[torch.Tensor]) -> Sequence[Any]:
    """Returns the strides that eager gives the result of an elementwise operation on `operands`.

    Symbolic sizes are compared by their values in the call that is compiled, without a guard.
    """
    shape, strides = _hints(result.shape), [_hints(tensor.stride()) for tensor in operands]
    same_shape = [_hints(tensor.shape) == shape for tensor in operands if tensor.dim()]
    if all(same_shape) and len(same_shape) == len(operands):
        rows = [*reversed(range(len(shape)))]
        for order in (rows, [1, 3, 2, 0])[: 1 + (len(shape) == 4)]:
            if all(_is_dense_in(order, shape, each) for each in strides):
                return dense_strides(order, result.shape, torch.sym_max)
        if len(set(strides)) == 1 and is_dense(shape, strides[0]):
            return operands[0].stride()
    order = _inner_to_outer(shape, [_broadcast_strides(tensor, shape) for tensor in operands if tensor.dim()])
    return dense_strides(order, result.shape, lambda size, _: size)


def _hints(numbers: Iterable[Any]) -> tuple[int, ...]:
    return tuple(map(hint_of, numbers))


def _is_dense_in(order: Sequence[int], shape: Sequence[int], strides: Sequence[int]) -> bool:
    dense = dense_strides(order, shape)
    return 0 in shape or all(size == 1 or one == other for size, one, other in zip(shape, strides, dense))


def _broadcast_strides(tensor: torch.Tensor, shape: Sequence[int]) -> list[int]:
    """Returns the strides of a tensor that is broadcast to `shape`; 0 for dimensions that it repeats."""
    missing = [0] * (len(shape) - tensor.dim())
    sizes = zip(_hints(tensor.stride()), _hints(tensor.shape), shape[len(missing) :])
    return missing + [0 if size == 1 and wanted != 1 else stride for stride, size, wanted in sizes]


def _inner_to_outer(shape: Sequence[int], all_strides: Sequence[Sequence[int]]) -> list[int]:
    """Returns the dimensions from the innermost on. The first tensor whose strides differ in two dimensions decides."""

    def is_inner(one: int, other: int) -> bool | None:
        for strides in all_strides:
            if strides[one] and strides[other] and strides[one] != strides[other]:
                return strides[one] < strides[other]
            if strides[one] and strides[one] == strides[other] and shape[one] > shape[other]:
                return False
        return None

    order: list[int] = []
    for dim in reversed(range(len(shape))):
        order.append(dim)
        position = len(order) - 1
        for before in reversed(range(position)):
            inner = is_inner(order[before], order[position])
            if inner is False:
                order[before], order[position] = order[position], order[before]
                position = before
            elif inner:
                break
    return order
