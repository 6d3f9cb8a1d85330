"""Owns the choice which values lie in the memory of inputs: those that the program has written there by then.

What computes the new data of an input often has readers behind the write. They find it in the input, as in eager,
where nothing reads what the input held, and nothing else is written there before they are done.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from minidynamo.codegen.ir.expr import Load, Ref, loads, walk
from minidynamo.codegen.ir.index import flatten
from minidynamo.codegen.ir.loops import (
    Extern,
    Kernel,
    Let,
    Loop,
    LoopProgram,
    Loops,
    Node,
    Store,
    Write,
    numbers_between,
)
from minidynamo.codegen.memory.buffer_reuse import filled, fits, may_overwrite, same_layout
from minidynamo.codegen.memory.liveness import Call, Liveness, analyze, defined
from minidynamo.codegen.scheduling.lifetimes import made, reads

Places = dict[str, str]
"""Values with what they are written over: an input, or the value that lies there."""


def find_places(schedule: Sequence[Call], program: LoopProgram) -> tuple[list[Call], Places]:
    """The schedule without stores of what lies there already, and the values that lie in inputs."""
    search = _Search(schedule, program)
    for write in reversed(program.writes):
        search.place(write)
    return [call for call in search.schedule if not isinstance(call, Kernel) or call.loops], search.places


def without_store(kernel: Kernel, name: str) -> Kernel:
    """A kernel that does not write one of its buffers."""
    kept = [[s for s in loop.body if not (isinstance(s, Store) and s.buffer == name)] for loop in kernel.loops]
    while True:
        uses = Counter(e.name for body in kept for s in body for e in walk(s.value) if isinstance(e, Ref))
        fewer = [[s for s in body if not isinstance(s, Let) or uses[s.name]] for body in kept]
        if fewer == kept:
            break
        kept = fewer
    loops = tuple(Loop(loop.axes, tuple(body)) for loop, body in zip(kernel.loops, kept) if body)
    writes = tuple(b for b in kernel.writes if b.name != name)
    read = {load.buffer for loop in loops for s in loop.body for load in loads(s.value)} - {b.name for b in writes}
    numbers = numbers_between(kernel.rows, loops) if loops else ()
    return replace(
        kernel, reads=tuple(b for b in kernel.arguments if b.name in read), writes=writes, loops=loops, numbers=numbers
    )


class _Search:
    """Goes through the writes from the last one on. `schedule` has an empty kernel where nothing is left of one;
    `inside` has the input that each value lies in which has been placed."""

    def __init__(self, schedule: Sequence[Call], program: LoopProgram) -> None:
        self.program = program
        self.schedule = list(schedule)
        self.places: Places = {}
        self.inside: dict[str, str] = {}
        self.makers = {name: k for k, call in enumerate(schedule) for name in defined(call)}
        self.calls = [0]
        for call in schedule:
            self.calls.append(self.calls[-1] + (isinstance(call, Extern) and not call.is_view))
        self.copied = {made(node): reads(node)[0] for node in program.nodes if _is_copy(node, program)}

    def place(self, write: Write) -> bool:
        """Let a value that is written to an input lie there, if that can be."""
        before = [*self.schedule], dict(self.places), dict(self.inside)
        is_made = write.value in self.makers and write.value not in self.program.inputs
        placed = is_made and write.value not in self.places and self._place(write)
        if not placed:
            self.schedule, self.places, self.inside = before
        return placed

    def _place(self, write: Write) -> bool:
        start = stored = self.makers[write.value]
        last = self.copied.get(write.place) == write.value
        if last:
            stored = self.makers[write.place]
            self.schedule[stored] = without_store(self.schedule[stored], write.place)  # type: ignore[arg-type]
        live = analyze(self.schedule, self.program.inputs, self.program.outputs)
        behind = range(stored + 1, len(self.schedule))
        end: float = next((k for k in behind if self._is_written(write.place, k, live)), math.inf)
        if any(self._is_written(write.place, k, live) for k in range(start, stored + 1)):
            return False
        # Until the program writes, and up to its next write, other names mean what the input held before.
        old = range(start + 1, stored + 1) if last else range(start + 1, len(self.schedule))
        if any(self._names(write.place, k, live) for k in old if k <= end):
            return False
        if live.owners(write.value) != (write.value,) or (not last and end == math.inf):
            return False
        self.inside[write.value], self.places[write.value] = write.place, write.place
        return self._is_gone(write.value, end, live) and self._is_written_over(write, live)

    def _is_gone(self, value: str, end: float, live: Liveness) -> bool:
        """Whether nobody reads a value any more when something else is written to its memory."""
        if live.storage_end[value] != end or end == math.inf:
            return live.storage_end[value] < end
        call = self.schedule[int(end)]
        if not isinstance(call, Kernel):
            over = [self.places[name] for name in defined(call) if name in self.places]
            return any(live.owners(name) == (value,) for name in over)
        place = self.inside[value]
        written = [b.name for b in call.writes if place in (b.name, self.inside.get(b.name))]
        return self._names(value, int(end), live) == {value} and may_overwrite(call, value, written[0])

    def _is_written_over(self, write: Write, live: Liveness) -> bool:
        """Whether the step that makes the value can write it over what the input holds then."""
        start = self.makers[write.value]
        call = self.schedule[start]
        if isinstance(call, Kernel):
            own = self._names(write.place, start, live) <= {write.place}
            return own and self.calls[start] == write.calls and may_overwrite(call, write.place, write.value)
        if not isinstance(call, Extern) or self.calls[start + 1] != write.calls:
            return False
        before = filled(call, live.owners)
        if before is None or self._names(write.place, start, live):
            return False
        lying, *others = live.owners(before)
        if others:
            return False
        earlier = next((w for w in self.program.writes if (w.place, w.value) == (write.place, lying)), None)
        buffers = self.program.buffers
        if earlier is None or not same_layout(buffers[before], buffers[write.value]):
            return False
        if before != lying and not fits(buffers[before], buffers[lying]):
            return False
        self.places[write.value] = before
        return self.place(earlier)

    def _names(self, place: str, position: int, live: Liveness) -> set[str]:
        """The names under which a step reads the memory of an input or value."""
        call = self.schedule[position]
        found = (
            {load.buffer for s in call.statements() for load in loads(s.value)}
            if isinstance(call, Kernel)
            else {*reads(call)}
        )
        return {name for name in found if place in live.owners(name)}

    def _is_written(self, place: str, position: int, live: Liveness) -> bool:
        """Whether a step writes to the memory of an input."""
        call = self.schedule[position]
        written = call.mutates if isinstance(call, Extern) else ()
        written = (*written, *defined(call)) if isinstance(call, Kernel) or call.out in self.inside else written
        return any(place in (*live.owners(name), self.inside.get(name)) for name in written)


def _is_copy(node: Node, program: LoopProgram) -> bool:
    """Whether a loop nest stores a value into an input as it is."""
    if not isinstance(node, Loops) or node.out.name not in program.inputs or not isinstance(node.body, Load):
        return False
    body, source = node.body, program.buffers[node.body.buffer]
    alike = body.valid is None and (source.dtype, source.numel) == (node.out.dtype, node.out.numel)
    return alike and flatten(body.index, source.stride) == flatten(node.index, node.out.stride)
