"""Owns operators on memory: `resize_storage`, for `tensor.untyped_storage().resize_(nbytes)` in graphs,
`torch.ops.minidynamo.copy_`, with which programs may fill a tensor, and the reset of a tensor's version counter.

The tracer decides what may be captured (`tracer/handlers/storages.py`, `tracer/calls/tensors.py`);
`autograd/functional/storage_resize.py` functionalizes the operators.
"""

from __future__ import annotations

import torch

from minidynamo import compat
from minidynamo.graph.custom_operators import define


def _resize(tensor: torch.Tensor, nbytes: int, empty: bool) -> None:
    """Resizes the memory of `tensor` to `nbytes`; `empty`: it had no memory before."""
    tensor.untyped_storage().resize_(nbytes)


def _resize_without_data(tensor: torch.Tensor, nbytes: int, empty: bool) -> None:
    """Does nothing: tensors without data keep the size of their shape. Empty storages are tracked separately."""


def _copy(tensor: torch.Tensor, src: torch.Tensor) -> None:
    """Calls `tensor.copy_(src)`, unseen by autograd: a saved `tensor` has the new data in backward."""
    tensor.data.copy_(src.detach())


def _copy_without_data(tensor: torch.Tensor, src: torch.Tensor) -> None:
    src.detach().expand(tensor.shape)  # raises for shapes that cannot be broadcast


resize_storage = define(
    "resize_storage",
    "(Tensor(a!) tensor, SymInt nbytes, bool empty) -> ()",
    _resize,
    _resize_without_data,
    unseen=True,
)
copy_unseen = define("copy_", "(Tensor(a!) self, Tensor src) -> ()", _copy, _copy_without_data, unseen=True)


def lower_version(tensor: torch.Tensor, writes: int) -> None:
    """Reduces the version of a tensor by `writes`."""
    compat.set_versions([tensor], [tensor._version - writes])


UNCOUNTED = frozenset((resize_storage, copy_unseen, lower_version))
"""Functions that change the memory or the version of tensors without counting a write."""
