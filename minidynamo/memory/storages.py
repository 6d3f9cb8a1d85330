"""Owns what is asked of the memory behind values of a graph, tensors without data: which storages, of how many bytes.

When it is made, and when it dies, is for others to know.
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
    """The tensors among nested values that lie in one storage each."""
    for tensor in tensors_in(value):
        if isinstance(tensor, compat.FakeTensor) and tensor.layout is torch.strided:
            yield tensor


def storages_in(value: Any) -> Iterator[tuple[object, int]]:
    """For each of these tensors what it has in common with others in the same storage, and the bytes of that."""
    return ((compat.memory_of(tensor), storage_bytes(tensor)) for tensor in strided_in(value))


def storages_of(nodes: Iterable[fx.Node]) -> dict[object, int]:
    """The bytes of each storage that the values of nodes lie in."""
    return dict(storage for node in nodes for storage in storages_in(node.meta.get("val")))


def storage_bytes(tensor: torch.Tensor) -> int:
    """The bytes of a tensor's memory; sizes that change are taken to be what they were when the graph was traced."""
    # Cost only: peaks are planned and predicted by it.
    return hint_of(tensor.untyped_storage().nbytes())
