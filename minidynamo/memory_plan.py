"""Owns what is known about the memory of compiled graphs before they run: which buffer lives when, and the peak.

Who plans memory is `codegen/memory/planner.py`; this file only records, adds up and shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from minidynamo.errors import UserLocation


@dataclass(frozen=True)
class PlannedBuffer:
    """One tensor's memory. It exists from step `born` (-1: it came as an input) until behind step `dies` (None: it is
    returned, or its owner keeps it). `reuses` is the buffer whose memory it takes over, `makers` the operations and
    `where` the user's line."""

    name: str
    bytes: int
    born: int
    dies: int | None
    reuses: str = ""
    makers: str = ""
    where: UserLocation | None = None


@dataclass(frozen=True)
class MemoryPlan:
    """The buffers of one graph in the order of birth. `steps` says what each step does."""

    stage: str
    buffers: tuple[PlannedBuffer, ...]
    steps: tuple[str, ...]

    def usage(self, owned: Collection[str] = ()) -> list[int]:
        """The bytes that exist in each step, and at the end, on top of those before the call; inputs in `owned` die."""
        changes = [0] * (len(self.steps) + 1)
        for buffer in self.buffers:
            if buffer.born >= 0:
                changes[buffer.born] += buffer.bytes
            if buffer.dies is not None and (buffer.born >= 0 or buffer.name in owned):
                changes[buffer.dies + 1] -= buffer.bytes
        total, usage = 0, []
        for change in changes:
            total += change
            usage.append(total)
        return usage

    def peak(self, owned: Collection[str] = ()) -> int:
        """The most bytes at one time, on top of what existed before the call."""
        return max(0, *self.usage(owned))

    @property
    def inputs(self) -> list[PlannedBuffer]:
        """The tensors that the graph is given."""
        return [buffer for buffer in self.buffers if buffer.born < 0]

    def __str__(self) -> str:
        rows = [("buffer", "bytes", "born", "dies", "memory", "made by")]
        for buffer in self.buffers:
            born = "input" if buffer.born < 0 else str(buffer.born)
            dies = "never" if buffer.dies is None else "unused" if buffer.dies < 0 else str(buffer.dies)
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
        level = peak = 0
        pending: list[tuple[MemoryPlan, set[str]]] = []
        given: set[str] = set()
        for plan in self:
            if plan.stage == "backward":
                pending.append((plan, given))
                continue
            given = {buffer.name for buffer in plan.inputs}
            usage = plan.usage()
            peak = max(peak, level + plan.peak())
            level += usage[-1]
        for plan, known in reversed(pending):
            owned = {buffer.name: buffer.bytes for buffer in plan.inputs if buffer.name not in known}
            level += sum(size for name, size in owned.items() if name.startswith("tangents_"))
            peak = max(peak, level + plan.peak(owned))
            level += plan.usage(owned)[-1]
        return peak

    def __str__(self) -> str:
        return "\n\n".join([*map(str, self), f"predicted peak: {self.peak:,} bytes"])


@dataclass
class PlanRecorder:
    """Collects what happens in a graph step by step, and gives the plan."""

    stage: str
    steps: list[str] = field(default_factory=list)
    _made: dict[str, PlannedBuffer] = field(default_factory=dict)
    _owner: dict[str, str] = field(default_factory=dict)
    _names: dict[str, set[str]] = field(default_factory=dict)
    _dies: dict[str, int] = field(default_factory=dict)

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

    def plan(self) -> MemoryPlan:
        """What was collected."""
        buffers = tuple(replace(buffer, dies=self._dies.get(name)) for name, buffer in self._made.items())
        return MemoryPlan(self.stage, buffers, tuple(self.steps))
