"""Owns queries about the storages of fake tensors: the tensors that have one, and its size in bytes.

The births and deaths of storages in a graph are in `graph_plan.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from minidynamo import compat
from minidynamo.graph.pytree import tensors_in
from minidynamo.graph.unbacked_symints import hint_of


def strided_in(value: Any) -> Iterator[torch.Tensor]:
    """Yields the fake tensors among nested values that have a strided storage."""
    for tensor in tensors_in(value):
        if isinstance(tensor, compat.FakeTensor) and tensor.layout is torch.strided:
            yield tensor


def storage_bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes of a tensor's memory; symbolic sizes count with their values of the traced call."""
    # For cost only: planned and predicted peaks depend on it.
    return hint_of(tensor.untyped_storage().nbytes())
