"""Owns queries about the storages of fake tensors: shared storages, and sizes in bytes.

Births and deaths of storages are not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.graph.pytree import tensors_in
from minidynamo.graph.unbacked_symints import hint_of


def strided_in(value: Any) -> Iterator[torch.Tensor]:
    """Yields the fake tensors among nested values that have a strided storage."""
    for tensor in tensors_in(value):
        if isinstance(tensor, compat.FakeTensor) and tensor.layout is torch.strided:
            yield tensor


def storages_in(value: Any) -> Iterator[tuple[object, int]]:
    """Yields, per strided tensor, a key of its storage (equal for tensors that share it), and the bytes of the
    storage."""
    return ((compat.memory_of(tensor), storage_bytes(tensor)) for tensor in strided_in(value))


def storages_of(nodes: Iterable[fx.Node]) -> dict[object, int]:
    """Returns the bytes of each storage of the values of nodes."""
    return dict(storage for node in nodes for storage in storages_in(node.meta.get("val")))


def storage_bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes of a tensor's memory; symbolic sizes count with their values of the traced call."""
    # For cost only: planned and predicted peaks depend on it.
    return hint_of(tensor.untyped_storage().nbytes())
