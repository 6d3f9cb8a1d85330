"""Owns the operators for memory that comes and goes: `resize_storage`, which stands in graphs for
`tensor.untyped_storage().resize_(nbytes)`, and `torch.ops.minidynamo.copy_`, by which programs may fill a tensor.

What may be captured is the tracer's to decide (`tracer/handlers/storages.py`), what becomes of it in a graph of values
is said in `autograd/functional/storage_resize.py`.
"""

from __future__ import annotations

import torch

from minidynamo.graph.custom_operators import define


def _resize(tensor: torch.Tensor, nbytes: int, empty: bool) -> None:
    """Give the memory of `tensor` so many bytes; `empty`: it has none before."""
    tensor.untyped_storage().resize_(nbytes)


def _resize_without_data(tensor: torch.Tensor, nbytes: int, empty: bool) -> None:
    """Tensors without data keep the size that their shape asks for: what is empty is tracked beside them."""


def _copy(tensor: torch.Tensor, src: torch.Tensor) -> None:
    """`tensor.copy_(src)`, unseen by autograd: whoever has saved `tensor` reads the new data."""
    tensor.data.copy_(src.detach())


def _copy_without_data(tensor: torch.Tensor, src: torch.Tensor) -> None:
    src.detach().expand(tensor.shape)  # which raises an error for a shape that does not fit


resize_storage = define(
    "resize_storage",
    "(Tensor(a!) tensor, SymInt nbytes, bool empty) -> ()",
    _resize,
    _resize_without_data,
    unseen=True,
)
copy_unseen = define("copy_", "(Tensor(a!) self, Tensor src) -> ()", _copy, _copy_without_data, unseen=True)
