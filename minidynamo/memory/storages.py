"""Owns queries about the storages of fake tensors: sizes in bytes, and the byte count of live storages while operations
run.

Births and deaths of storages in a graph are not known here. The callers choose the operations, and use the count.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from minidynamo import compat
from minidynamo.graph.pytree import tensors_in
from minidynamo.graph.unbacked_symints import hint_of
from minidynamo.memory.workspace import workspace_of


def strided_in(value: Any) -> Iterator[torch.Tensor]:
    """Yields the fake tensors among nested values that have a strided storage."""
    for tensor in tensors_in(value):
        if isinstance(tensor, compat.FakeTensor) and tensor.layout is torch.strided:
            yield tensor


def storage_bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes of a tensor's memory; symbolic sizes count with their values of the traced call."""
    # For cost only: planned and predicted peaks depend on it.
    return hint_of(tensor.untyped_storage().nbytes())


class StorageCounter(compat.TorchDispatchMode):
    """Counts the bytes of living storages allocated by operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        #: Tracked storages, by address.
        self.live: dict[int, weakref.ref[Any]] = {}
        self.level = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.update_peak()
        result = func(*args, **(kwargs or {}))
        self.record(strided_in(result))
        # When torch adds several gradients of one tensor, it writes over the first, if tensors have data. Without data,
        # the first dies by the next operation.
        if func is not torch.ops.aten.add.Tensor:
            self.update_peak(workspace_of(func, args, result))
        return result

    def update_peak(self, inside: int = 0) -> None:
        """Updates the peak with the present level, plus the bytes that a kernel allocates inside."""
        self.peak = max(self.peak, self.level + inside)

    def record(self, tensors: Iterable[torch.Tensor], counts: bool = True) -> None:
        """Starts to track the storages of tensors; inputs are tracked without counting."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self.live:
                nbytes = storage.nbytes() if counts else 0
                self.level += nbytes
                self.live[storage._cdata] = weakref.ref(storage, self._forgetting(storage._cdata, nbytes))

    def _forgetting(self, key: int, nbytes: int) -> Callable[[Any], None]:
        def forget(_: Any) -> None:
            del self.live[key]
            self.level -= nbytes

        return forget
