"""Owns what is known about the memory of compiled graphs before they run: which buffer lives when, and the peak.

Who plans memory is `codegen/memory/planner.py`; this file only records, adds up and shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from minidynamo.errors import UserLocation

ROUNDING = 64
"""The allocator gives memory in multiples of so many bytes, so that less of it per tensor is no difference."""

INSIDE = "inside_"
"""How the names of buffers begin that stand for what a kernel of torch takes while it runs."""


@dataclass(frozen=True)
class PlannedBuffer:
    """One tensor's memory. It exists from step `born` (-1: it came as an input) until behind step `dies` (None: it is
    returned, or its owner keeps it); a result that is handed over as a gradient and added to what `.grad` holds is gone
    behind step `taken`. `reuses` is the buffer whose memory it takes over, `makers` the operations and
    `where` the user's line."""

    name: str
    bytes: int
    born: int
    dies: int | None
    reuses: str = ""
    makers: str = ""
    where: UserLocation | None = None
    taken: int | None = None

    def end(self, accumulating: bool) -> int | None:
        """The step behind which it is gone, when gradients are added to others or are the first."""
        return self.taken if accumulating and self.dies is None else self.dies


@dataclass(frozen=True)
class MemoryPlan:
    """The buffers of one graph in the order of birth. `steps` says what each step does."""

    stage: str
    buffers: tuple[PlannedBuffer, ...]
    steps: tuple[str, ...]

    def usage(self, owned: Collection[str] = (), accumulating: bool = False) -> list[int]:
        """The bytes that exist in each step, and at the end, on top of those before the call; inputs in `owned` die.

        `accumulating`: gradients are added to those that are there.
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
        """The most bytes at one time, on top of what existed before the call."""
        return max(0, *self.usage(owned, accumulating))

    @property
    def inputs(self) -> list[PlannedBuffer]:
        """The tensors that the graph is given."""
        return [buffer for buffer in self.buffers if buffer.born < 0]

    @property
    def input_names(self) -> list[str]:
        """Their names."""
        return [buffer.name for buffer in self.inputs]

    def __str__(self) -> str:
        rows = [("buffer", "bytes", "born", "dies", "memory", "made by")]
        for buffer in self.buffers:
            born = "input" if buffer.born < 0 else str(buffer.born)
            dies = "never" if buffer.dies is None else "unused" if buffer.dies < 0 else str(buffer.dies)
            if buffer.taken is not None:
                dies = f"never ({buffer.taken})"
            memory = f"of {buffer.reuses}" if buffer.reuses else "" if buffer.born < 0 else "new"
            made_by = f"{buffer.makers}  {buffer.where or ''}"
            rows.append((buffer.name, f"{buffer.bytes:,}", born, dies, memory, made_by))
        return "\n".join([f"{self.stage} graph, {len(self.steps)} steps", *columns(rows, right=(1, 2, 3))])


def columns(rows: Sequence[Sequence[str]], right: Collection[int]) -> list[str]:
    """The lines of a table; the columns in `right` end at the same place, the others begin there."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [text.rjust(w) if i in right else text.ljust(w) for i, (text, w) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    return lines


class MemoryReport(list[MemoryPlan]):
    """The plans of a compiled function: forward or inference graphs, each followed by its backward if that has run."""

    @property
    def peak(self) -> int:
        """The most bytes that a call, and its backward, need on top of what existed before it.

        Graphs run forward in order and backward in reverse. What kernels of torch need inside is known of convolutions.
        """
        return self._peak(accumulating=False)

    @property
    def accumulating_peak(self) -> int:
        """The same for a step whose gradients are added to those that `.grad` holds already."""
        return self._peak(accumulating=True)

    def _peak(self, accumulating: bool) -> int:
        level = peak = 0
        pending: list[tuple[list[MemoryPlan], set[str]]] = []
        given: set[str] = set()
        for plan in self:
            if plan.stage == "backward":
                if pending and pending[-1][0][0].input_names == plan.input_names:  # another part of the same backward
                    pending[-1][0].append(plan)
                else:
                    pending.append(([plan], given))
                continue
            given = {*plan.input_names}
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
            last += f"; {self.accumulating_peak:,} bytes where gradients are added to those that are there"
        return "\n\n".join([*map(str, self), last])


@dataclass
class PlanRecorder:
    """Collects what happens in a graph step by step, and gives the plan."""

    stage: str
    steps: list[str] = field(default_factory=list)
    _made: dict[str, PlannedBuffer] = field(default_factory=dict)
    _owner: dict[str, str] = field(default_factory=dict)
    _names: dict[str, set[str]] = field(default_factory=dict)
    _dies: dict[str, int] = field(default_factory=dict)
    _handed_over: set[str] = field(default_factory=set)
    _taken: dict[str, int] = field(default_factory=dict)

    def step(self, label: str) -> None:
        """The next step begins."""
        self.steps.append(label)

    def make(
        self, name: str, size: int, makers: str = "", where: UserLocation | None = None, *, reuses: str = ""
    ) -> None:
        """A tensor comes to exist: an input before the first step, else new memory or that of `reuses`."""
        if reuses:
            reuses = self._owner[reuses]
            self._names[reuses].clear()
            self._dies[reuses] = len(self.steps) - 2  # its memory goes on under the new name
        self._made[name] = PlannedBuffer(name, size, len(self.steps) - 1, None, reuses, makers, where)
        self._owner[name] = name
        self._names[name] = {name}

    def take_inside(self, name: str, size: int, makers: str = "", where: UserLocation | None = None) -> None:
        """The kernel that makes `name` in this step takes so many bytes while it runs."""
        if size:
            self.make(INSIDE + name, size, makers, where)
            self.free([INSIDE + name])

    def view(self, name: str, of: str) -> None:
        """Another name for memory that is known."""
        owner = self._owner.get(of)
        if owner is not None:
            self._owner[name] = owner
            self._names[owner].add(name)

    def free(self, names: Iterable[str]) -> None:
        """Names that are not used behind this step; memory dies with its last name."""
        for name in names:
            owner = self._owner.get(name)
            if owner is None:
                continue
            self._names[owner].discard(name)
            if not self._names[owner]:
                self._dies[owner] = len(self.steps) - 1
            self._see_whether_taken(owner)

    def hand_over(self, name: str) -> None:
        """A result is final: who called may take it."""
        owner = self._owner.get(name)
        if owner is not None:
            self._handed_over.add(name)
            self._see_whether_taken(owner)

    def _see_whether_taken(self, owner: str) -> None:
        if self._names[owner] and self._names[owner] <= self._handed_over:
            self._taken.setdefault(owner, len(self.steps) - 1)

    def plan(self) -> MemoryPlan:
        """What was collected."""
        buffers = tuple(
            replace(buffer, dies=self._dies.get(name), taken=self._taken.get(name))
            for name, buffer in self._made.items()
        )
        return MemoryPlan(self.stage, buffers, tuple(self.steps))
