"""Owns the memory plans of compiled graphs before they run, with the lifetime of each buffer and the peak, and the
records of saved tensors, as users and their policies see them.

`codegen/memory/planner.py` plans memory, and `autograd/partition/partition.py` decides which tensors are saved; this
file records, adds up and prints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import field, replace

import torch

from minidynamo.core.records import record
from minidynamo.errors import UserLocation

SMALL_GRADIENTS = 1 << 15
"""The most bytes of gradients that backward returns together: a call for each gradient would take longer."""

SMALL_SAVED = 1 << 12
"""The most bytes of saved tensors that may outlive the result that needs them: a node for each result takes longer."""


@record(frozen=True)
class PlannedBuffer:
    """The memory of a tensor."""

    #: The name of the tensor in its graph.
    name: str
    #: The size in bytes.
    bytes: int
    #: The step that allocates the memory; -1 for an input.
    born: int
    #: The step after which the memory is free; None for a result, or for memory that its owner keeps; -1 for an unused
    #: input.
    dies: int | None
    #: The buffer whose memory is taken over, or "".
    reuses: str = ""
    #: The operations that compute the tensor.
    operations: str = ""
    #: The user's line.
    where: UserLocation | None = None
    #: For a gradient that is handed over and added to a present `.grad`: the step after which the gradient is free.
    accumulated_at: int | None = None

    def end(self, accumulating: bool) -> int | None:
        """Returns the step after which the memory is free. `accumulating`: gradients are added to a present `.grad`."""
        return self.accumulated_at if accumulating and self.dies is None else self.dies


@record(frozen=True)
class MemoryPlan:
    """The memory plan of a graph."""

    #: The name of the graph: "forward", "backward", ...
    stage: str
    #: The buffers in the order of birth.
    buffers: tuple[PlannedBuffer, ...]
    #: A label per step.
    steps: tuple[str, ...]

    def usage(self, owned: Collection[str] = (), accumulating: bool = False) -> list[int]:
        """Returns the bytes alive in each step, and at the end, on top of the memory before the call; inputs in `owned`
        die.

        `accumulating`: gradients are added to a present `.grad`.
        """
        changes = [0] * (len(self.steps) + 1)
        for buffer in self.buffers:
            if buffer.born >= 0:
                changes[buffer.born] += buffer.bytes
            end = buffer.end(accumulating)
            if end is not None and (buffer.born >= 0 or buffer.name in owned):
                changes[end + 1] -= buffer.bytes
        total, usage = 0, []
        for change in changes:
            total += change
            usage.append(total)
        return usage

    def peak(self, owned: Collection[str] = (), accumulating: bool = False) -> int:
        """Returns the most bytes alive at once, on top of the memory before the call."""
        return max(0, *self.usage(owned, accumulating))

    def peak_with_inputs(self, owned: Collection[str], accumulating: bool = False) -> int:
        """Returns the most bytes alive at once, counting the inputs in `owned` until they die."""
        return sum(buffer.bytes for buffer in self.inputs if buffer.name in owned) + self.peak(owned, accumulating)

    def at_peak(self, owned: Collection[str] = (), accumulating: bool = False) -> list[PlannedBuffer]:
        """Returns the buffers without inputs that are alive at the first peak, in order of birth.

        The birth of the last buffer reaches the peak. The list is empty if no more memory is used than before the call.
        """
        usage = self.usage(owned, accumulating)
        step = usage.index(max(usage)) if max(usage) > 0 else -1
        ends = ((buffer, buffer.end(accumulating)) for buffer in self.buffers if 0 <= buffer.born <= step)
        return [buffer for buffer, end in ends if end is None or end >= step]

    @property
    def inputs(self) -> list[PlannedBuffer]:
        """Returns the input tensors of the graph."""
        return [buffer for buffer in self.buffers if buffer.born < 0]

    @property
    def input_names(self) -> list[str]:
        """Returns the names of the input tensors."""
        return [buffer.name for buffer in self.inputs]

    def __str__(self) -> str:
        rows = [("buffer", "bytes", "born", "dies", "memory", "made by")]
        for buffer in self.buffers:
            born = "input" if buffer.born < 0 else str(buffer.born)
            dies = "never" if buffer.dies is None else "unused" if buffer.dies < 0 else str(buffer.dies)
            if buffer.accumulated_at is not None:
                dies = f"never ({buffer.accumulated_at})"
            memory = f"of {buffer.reuses}" if buffer.reuses else "" if buffer.born < 0 else "new"
            made_by = f"{buffer.operations}  {buffer.where or ''}"
            rows.append((buffer.name, f"{buffer.bytes:,}", born, dies, memory, made_by))
        return "\n".join([f"{self.stage} graph, {len(self.steps)} steps", *columns(rows, right=(1, 2, 3))])


def columns(rows: Sequence[Sequence[str]], right: Collection[int]) -> list[str]:
    """Returns the lines of a table; columns in `right` are right-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [text.rjust(w) if i in right else text.ljust(w) for i, (text, w) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    return lines


class MemoryReport(list[MemoryPlan]):
    """The plans of a compiled function: forward or inference graphs, each followed by its backward after it has run."""

    @property
    def peak(self) -> int:
        """Returns the most bytes that a call, and its backward, need on top of the memory before the call.

        Graphs run forward in order and backward in reverse. The workspace of torch's kernels does not count.
        """
        return self._peak(accumulating=False)

    @property
    def accumulating_peak(self) -> int:
        """Returns `peak` for a step whose gradients are added to a present `.grad`."""
        return self._peak(accumulating=True)

    def _peak(self, accumulating: bool) -> int:
        level = peak = 0
        pending: list[tuple[list[MemoryPlan], set[str]]] = []
        known_names: set[str] = set()
        for plan in self:
            if plan.stage == "backward":
                if pending and pending[-1][0][0].input_names == plan.input_names:  # a further part of the same backward
                    pending[-1][0].append(plan)
                else:
                    pending.append(([plan], known_names))
                continue
            known_names = {*plan.input_names}
            usage = plan.usage()
            peak = max(peak, level + plan.peak())
            level += usage[-1]
        for parts, known in reversed(pending):
            owned = {buffer.name: buffer.bytes for buffer in parts[0].inputs if buffer.name not in known}
            level += sum(size for name, size in owned.items() if name.startswith("tangents_"))
            peak = max(peak, *(level + plan.peak(owned, accumulating) for plan in parts))
            level += max(plan.usage(owned, accumulating)[-1] for plan in parts)
        return peak

    def __str__(self) -> str:
        last = f"predicted peak: {self.peak:,} bytes"
        if self.accumulating_peak != self.peak:
            last += f"; {self.accumulating_peak:,} bytes if gradients are added to a present .grad"
        return "\n\n".join([*map(str, self), last])


@record
class PlanRecorder:
    """Collects the events of a graph step by step, and builds the plan."""

    #: The name of the graph.
    stage: str
    #: A label per step so far.
    steps: list[str] = field(default_factory=list)
    #: Name -> buffer, in order of birth.
    _buffers: dict[str, PlannedBuffer] = field(default_factory=dict)
    #: Name of a tensor or view -> name of the buffer that owns its memory.
    _owner: dict[str, str] = field(default_factory=dict)
    #: Name of a buffer -> names of its memory that the graph still uses.
    _names: dict[str, set[str]] = field(default_factory=dict)
    #: The buffers of final results.
    _final: set[str] = field(default_factory=set)

    def step(self, label: str) -> None:
        """Begins the next step."""
        self.steps.append(label)

    def add(
        self, name: str, size: int, operations: str = "", where: UserLocation | None = None, *, reuses: str = ""
    ) -> None:
        """Records a new tensor: an input before the first step, else new memory or the memory of `reuses`."""
        step = len(self.steps) - 1
        if reuses:
            reuses = self._owner[reuses]
            self._names[reuses].clear()
            self._buffers[reuses] = replace(self._buffers[reuses], dies=step - 1)  # in use under the new name
        self._buffers[name] = PlannedBuffer(name, size, step, None, reuses, operations, where)
        self._owner[name] = name
        self._names[name] = {name}

    def view(self, name: str, of: str) -> bool:
        """Records a further name for the memory of `of`; returns whether that memory is known."""
        owner = self._owner.get(of)
        if owner is not None:
            self._owner[name] = owner
            self._names[owner].add(name)
        return owner is not None

    def free(self, names: Iterable[str]) -> None:
        """Records names without further uses; memory dies with its last name."""
        for name in names:
            owner = self._owner.get(name)
            if owner is not None:
                self._names[owner].discard(name)
                self._end(owner)

    def hand_over(self, name: str) -> None:
        """Records that a result is final: the caller may take the result now."""
        owner = self._owner.get(name)
        if owner is not None:
            self._final.add(owner)
            self.free([name])

    def _end(self, owner: str) -> None:
        """Ends the life of a buffer without names in use. The memory of a final result is then the caller's."""
        if not self._names[owner]:
            buffer, step = self._buffers[owner], len(self.steps) - 1
            is_final = owner in self._final
            self._buffers[owner] = replace(buffer, accumulated_at=step) if is_final else replace(buffer, dies=step)

    def plan(self) -> MemoryPlan:
        """Returns the recorded plan."""
        return MemoryPlan(self.stage, tuple(self._buffers.values()), tuple(self.steps))


@record(frozen=True)
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
