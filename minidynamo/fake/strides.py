"""Owns arithmetic on strides: whether elements fill their memory, and whether two sets of offsets overlap.

The callers define the unit of offsets, and the data stored there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
