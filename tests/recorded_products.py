"""Owns a dispatch mode for tests of the order in which a backward computes and communicates."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class RecordedProducts(TorchDispatchMode):
    """Appends "mm" to `events` at each product of matrices."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.events.extend(["mm"] * ("mm" in str(function)))
        return function(*args, **(kwargs or {}))
