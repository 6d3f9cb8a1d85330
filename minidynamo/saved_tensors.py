"""Owns the records of what forward graphs keep for backward, as users and their policies see them.

Who keeps what is decided in `autograd/partition.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from minidynamo.errors import UserLocation


@dataclass(frozen=True)
class SavedValue:
    """A tensor that forward keeps for backward, and why."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int
    op: str
    user_location: UserLocation | None
    reason: str

    def __str__(self) -> str:
        where = f"  {self.user_location}" if self.user_location else ""
        return f"{self.name}: {self.dtype}{list(self.shape)}, {self.bytes:,} bytes, {self.op}: {self.reason}{where}"


class SavedTensors(list[SavedValue]):
    """What forward graphs keep for backward. Printed, it is a table, the largest first."""

    @property
    def bytes(self) -> int:
        """All of them together; inputs count, though their owners keep them anyway."""
        return sum(value.bytes for value in self)

    def __str__(self) -> str:
        lines = [str(value) for value in sorted(self, key=lambda value: -value.bytes)]
        own = sum(value.bytes for value in self if value.op != "input")
        return "\n".join([*lines, f"{len(self)} tensors, {self.bytes:,} bytes, {own:,} of them no inputs"])
