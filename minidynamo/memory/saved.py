"""Owns the records of saved tensors, as users and their policies see them.

`autograd/partition/partition.py` decides which tensors are saved.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from minidynamo.errors import UserLocation
from minidynamo.memory.plan import columns


@dataclass(frozen=True)
class SavedValue:
    """A tensor that forward saves for backward, and the reason."""

    #: The name of the graph node.
    name: str
    #: Sizes, as in the traced call.
    shape: tuple[int, ...]
    dtype: torch.dtype
    #: The size in bytes.
    bytes: int
    #: The operation that computes the tensor; "input" for an input.
    op: str
    #: The user's line.
    user_location: UserLocation | None
    #: Why the partitioner saves the tensor instead of recomputing it.
    reason: str

    @property
    def kind(self) -> str:
        """Returns dtype and shape as text."""
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"

    def __str__(self) -> str:
        where = f"  {self.user_location}" if self.user_location else ""
        return f"{self.name}: {self.dtype}{list(self.shape)}, {self.bytes:,} bytes, {self.op}: {self.reason}{where}"


class SavedTensors(list[SavedValue]):
    """The saved tensors of forward graphs. Printed, a table with the largest first."""

    @property
    def bytes(self) -> int:
        """Returns the bytes of all saved tensors, with inputs, which the caller keeps alive anyway."""
        return sum(value.bytes for value in self)

    def __str__(self) -> str:
        if not self:
            return "no saved tensors"
        rows = [("tensor", "", "bytes", "made by", "line", "why")]
        for value in sorted(self, key=lambda value: -value.bytes):
            rows.append(
                (value.name, value.kind, f"{value.bytes:,}", value.op, str(value.user_location or ""), value.reason)
            )
        own = sum(value.bytes for value in self if value.op != "input")
        total = f"{len(self)} tensors, {self.bytes:,} bytes, {own:,} bytes without inputs"
        return "\n".join([*columns(rows, right=(2,)), total])
