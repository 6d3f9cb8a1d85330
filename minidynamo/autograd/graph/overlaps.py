"""Owns questions about shared elements: which elements two tensors share, and whether an operator may read elements
that it writes.

It compares layouts only. `autograd/functional/functionalize.py` handles writes without functional form.
"""

from __future__ import annotations

from typing import Any

import torch

from minidynamo.autograd.graph.mutation import Mutation
from minidynamo.autograd.graph.numbers import is_symbolic, key, keys
from minidynamo.compat import OpOverload
from minidynamo.fake.strides import Dims, may_meet
from minidynamo.graph.unbacked_symints import depends_on_data


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Returns whether elements share memory, as far as known layouts show."""
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


def is_elementwise(op: OpOverload, mutation: Mutation) -> bool:
    """Returns whether an operator reads, for each written element, only the same element of the arguments."""
    variants = (op, mutation.functional)
    tagged = any(torch.Tag.pointwise in variant.tags for variant in variants if variant is not None)
    return tagged or op is torch.ops.aten.copy_.default or op.overloadpacket.__name__.startswith("_foreach_")


def same_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors over one storage have the same elements in the same order."""
    return _layout(one) == _layout(other)


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    facts = keys((tensor.storage_offset(), *tensor.shape, *tensor.stride()))
    return (tensor.dtype, tensor.is_conj(), tensor.is_neg(), *facts)


def share_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors over one storage may share memory. Unknown sizes are decided with a guard; a storage
    offset that depends on data may be any."""
    if not one.numel() or not other.numel():
        return False
    if any(depends_on_data(tensor.storage_offset()) for tensor in (one, other)):
        return True
    return may_meet(*_bytes_of(one), *_bytes_of(other))


def _bytes_of(tensor: torch.Tensor) -> tuple[Any, Dims]:
    """Returns the position of the first byte, and (stride, size) of each dimension in bytes; the innermost are the
    bytes of one element."""
    width = tensor.element_size()
    dims = [(stride * width, size) for size, stride in zip(tensor.shape, tensor.stride()) if size != 1 and stride != 0]
    return tensor.storage_offset() * width, [*sorted(dims, key=lambda dim: dim[0], reverse=True), (1, width)]
