"""Owns the question which elements of memory two tensors share, and whether an operator may read what it writes.

It knows layouts alone; what happens to a write that cannot be turned into a value is said in `functionalize.py`.
"""

from __future__ import annotations

from typing import Any

import torch

from minidynamo.autograd.mutation import Mutation
from minidynamo.autograd.numbers import is_symbolic, key, keys
from minidynamo.compat import OpOverload

Dims = list[tuple[Any, Any]]  # (stride, size), from the outermost on


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether elements lie in the same memory, as far as layouts tell that are known."""
    dims = [(stride, size) for size, stride in zip(tensor.shape, tensor.stride()) if key(size) != 1]
    if any(key(stride) == 0 and size > 1 for stride, size in dims):
        return True
    if any(map(is_symbolic, (*tensor.shape, *tensor.stride()))) or not tensor.numel():
        return False
    reach = 0
    for stride, size in sorted(dims):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def goes_element_by_element(op: OpOverload, mutation: Mutation) -> bool:
    """Whether an operator reads of its arguments only the element that it then writes."""
    variants = (op, mutation.functional)
    tagged = any(torch.Tag.pointwise in variant.tags for variant in variants if variant is not None)
    return tagged or op is torch.ops.aten.copy_.default or op.overloadpacket.__name__.startswith("_foreach_")


def same_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors over one storage are the same elements in the same order."""
    return _layout(one) == _layout(other)


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    facts = keys((tensor.storage_offset(), *tensor.shape, *tensor.stride()))
    return (tensor.dtype, tensor.is_conj(), tensor.is_neg(), *facts)


def share_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors over one storage may have memory in common. Sizes that are not known are decided on."""
    if not one.numel() or not other.numel():
        return False
    return _meet(*_bytes_of(one), *_bytes_of(other))


def _bytes_of(tensor: torch.Tensor) -> tuple[Any, Dims]:
    """Where the first byte is, and the dimensions of all, whose innermost are the bytes of one element."""
    width = tensor.element_size()
    dims = [(stride * width, size) for size, stride in zip(tensor.shape, tensor.stride()) if size != 1 and stride != 0]
    return tensor.storage_offset() * width, [*sorted(dims, key=lambda dim: dim[0], reverse=True), (1, width)]


def _reach(dims: Dims) -> Any:
    return sum(stride * (size - 1) for stride, size in dims)


def _meet(start: Any, dims: Dims, other_start: Any, other_dims: Dims) -> bool:
    """Whether two sets of numbers may have one in common: `start` plus multiples of strides.

    Where a stride cuts both into periods, and neither goes beyond the end of one, the places in a period decide.
    """
    if start + _reach(dims) < other_start or other_start + _reach(other_dims) < start:
        return False
    for step in [stride for stride, _ in (*dims, *other_dims) if stride != 1]:
        inner = [dim for dim in dims if dim[0] < step]
        other_inner = [dim for dim in other_dims if dim[0] < step]
        place, other_place = start % step, other_start % step
        periodic = all(stride % step == 0 for stride, _ in (*dims, *other_dims) if stride >= step)
        if not periodic or place + _reach(inner) >= step or other_place + _reach(other_inner) >= step:
            continue
        if not _meet(place, inner, other_place, other_inner):
            return False
    return True
