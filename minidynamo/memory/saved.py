"""Owns the records of what forward graphs keep for backward, as users and their policies see them.

Who keeps what is decided in `autograd/partition/partition.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from minidynamo.errors import UserLocation
from minidynamo.memory.plan import columns


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

    @property
    def kind(self) -> str:
        """Dtype and shape."""
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"

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
        if not self:
            return "nothing is kept for backward"
        rows = [("tensor", "", "bytes", "made by", "line", "why")]
        for value in sorted(self, key=lambda value: -value.bytes):
            rows.append(
                (value.name, value.kind, f"{value.bytes:,}", value.op, str(value.user_location or ""), value.reason)
            )
        own = sum(value.bytes for value in self if value.op != "input")
        total = f"{len(self)} tensors, {self.bytes:,} bytes, {own:,} of them besides inputs"
        return "\n".join([*columns(rows, right=(2,)), total])
