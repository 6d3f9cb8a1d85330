"""Owns the count of what lives while operations run on tensors without data: storages, from birth to death.

Which operations run, and what is made of the count, is for others to say.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from minidynamo import compat
from minidynamo.memory.storages import strided_in
from minidynamo.memory.workspace import workspace_of


class Counting(compat.TorchDispatchMode):
    """Counts the bytes of the storages that operations make, as long as they live."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known: dict[int, weakref.ref[Any]] = {}
        self.arrived: set[object] = set()  # what has arrived from outside, of what is known
        self.level = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.look()
        if torch.is_inference_mode_enabled():  # where functions of several operations come whole
            with self:
                made = func.decompose(*args, **(kwargs or {}))
            if made is not NotImplemented:
                return made
        made = func(*args, **(kwargs or {}))
        self.note(strided_in(made))
        # Where several gradients of one tensor are added, torch writes over the first if it has data. Without, that is
        # gone by the next operation. One that has arrived from outside may be somebody else's.
        if func is not torch.ops.aten.add.Tensor or compat.memory_of(args[0]) in self.arrived:
            self.look(workspace_of(func, args, made))
        return made

    def look(self, inside: int = 0) -> None:
        """Note how much lives now, with what a kernel takes inside."""
        self.peak = max(self.peak, self.level + inside)

    def note(self, tensors: Iterable[torch.Tensor], counts: bool = True) -> None:
        """Tensors that there are; those that are inputs do not count."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self.known:
                nbytes = storage.nbytes() if counts else 0
                self.level += nbytes
                self.known[storage._cdata] = weakref.ref(storage, self._forgetting(storage._cdata, nbytes))

    def _forgetting(self, key: int, nbytes: int) -> Callable[[Any], None]:
        def forget(_: Any) -> None:
            del self.known[key]
            self.arrived.discard(key)  # the next storage may lie at the same address
            self.level -= nbytes

        return forget
