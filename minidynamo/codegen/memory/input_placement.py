"""Owns the choice of values that are computed directly in the memory of inputs: values that the program writes to the
inputs.

The new data of an input often has readers after the write. As in eager, the readers find the data in the input,
provided that no later step reads the old data of the input, and that no other value is written to the input before the
last reader.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from minidynamo.codegen.ir.expr import Load, Ref
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
from minidynamo.codegen.memory.write_regions import fillable_argument, fits, may_overwrite, same_layout
from minidynamo.codegen.scheduling.lifetimes import Call, Liveness, analyze, defined, defines, reads

Placements = dict[str, str]
"""Value -> its memory: an input, or a value that was computed in the memory of an input."""


def place_in_inputs(schedule: Sequence[Call], program: LoopProgram) -> tuple[list[Call], Placements]:
    """Returns the schedule without stores of data that is in place already, and the values that are computed in the
    memory of inputs."""
    search = _Search(schedule, program)
    for write in reversed(program.writes):
        search.place(write)
    return [call for call in search.schedule if not isinstance(call, Kernel) or call.loops], search.placements


def without_store(kernel: Kernel, name: str) -> Kernel:
    """Returns the kernel without the stores to the buffer `name`."""
    bodies = [[s for s in loop.body if not (isinstance(s, Store) and s.buffer == name)] for loop in kernel.loops]
    while True:
        uses = Counter(e.name for body in bodies for s in body for e in s.value.below if isinstance(e, Ref))
        fewer = [[s for s in body if not isinstance(s, Let) or uses[s.name]] for body in bodies]
        if fewer == bodies:
            break
        bodies = fewer
    loops = tuple(Loop(loop.axes, tuple(body)) for loop, body in zip(kernel.loops, bodies) if body)
    writes = tuple(b for b in kernel.writes if b.name != name)
    read = {load.buffer for loop in loops for s in loop.body for load in s.value.loads} - {b.name for b in writes}
    numbers = numbers_between(kernel.rows, loops) if loops else ()
    return replace(
        kernel, reads=tuple(b for b in kernel.arguments if b.name in read), writes=writes, loops=loops, numbers=numbers
    )


class _Search:
    """Searches the writes of a program, last write first, for values to compute in the memory of inputs.

    Dropping a store may leave an empty kernel in `schedule`; positions stay valid during the search. `input_of[value]`
    is the input in whose memory `value` is computed.
    """

    def __init__(self, schedule: Sequence[Call], program: LoopProgram) -> None:
        self.program = program
        self.schedule = list(schedule)
        self.placements: Placements = {}
        self.input_of: dict[str, str] = {}
        self.producers = {name: k for k, call in enumerate(schedule) for name in defined(call)}
        self.calls = [0]
        for call in schedule:
            self.calls.append(self.calls[-1] + (isinstance(call, Extern) and not call.is_view))
        self.input_copies = {defines(node): reads(node)[0] for node in program.nodes if _is_copy(node, program)}

    def place(self, write: Write) -> bool:
        """Computes a written value in the memory of its input if possible; returns whether it is."""
        before = [*self.schedule], dict(self.placements), dict(self.input_of)
        is_computed = write.value in self.producers and write.value not in self.program.inputs
        placed = is_computed and write.value not in self.placements and self._place(write)
        if not placed:
            self.schedule, self.placements, self.input_of = before
        return placed

    def _place(self, write: Write) -> bool:
        start = store = self.producers[write.value]
        is_final = self.input_copies.get(write.input) == write.value
        if is_final:
            store = self.producers[write.input]
            self.schedule[store] = without_store(self.schedule[store], write.input)  # type: ignore[arg-type]
        live = analyze(self.schedule, self.program.inputs, self.program.outputs)
        steps_after = range(store + 1, len(self.schedule))
        end: float = next((k for k in steps_after if self._is_written(write.input, k, live)), math.inf)
        if any(self._is_written(write.input, k, live) for k in range(start, store + 1)):
            return False
        # In these steps, every name of the input except that of the value refers to the old data.
        steps_with_old_data = range(start + 1, store + 1) if is_final else range(start + 1, len(self.schedule))
        if any(self._names(write.input, k, live) for k in steps_with_old_data if k <= end):
            return False
        if live.owners(write.value) != (write.value,) or (not is_final and end == math.inf):
            return False
        self.input_of[write.value], self.placements[write.value] = write.input, write.input
        return self._is_dead_before(write.value, end, live) and self._can_overwrite(write, live)

    def _is_dead_before(self, value: str, end: float, live: Liveness) -> bool:
        """Returns whether a value is dead when its memory is written next, or the writing step is its last reader."""
        if live.storage_end[value] != end or end == math.inf:
            return live.storage_end[value] < end
        call = self.schedule[int(end)]
        if not isinstance(call, Kernel):
            overwritten = [self.placements[name] for name in defined(call) if name in self.placements]
            return any(live.owners(name) == (value,) for name in overwritten)
        input_name = self.input_of[value]
        written = [b.name for b in call.writes if input_name in (b.name, self.input_of.get(b.name))]
        return self._names(value, int(end), live) == {value} and may_overwrite(call, value, written[0])

    def _can_overwrite(self, write: Write, live: Liveness) -> bool:
        """Returns whether the step that computes the value can write the value over the present contents of the
        input."""
        start = self.producers[write.value]
        call = self.schedule[start]
        if isinstance(call, Kernel):
            reads_only_input = self._names(write.input, start, live) <= {write.input}
            return (
                reads_only_input and self.calls[start] == write.calls and may_overwrite(call, write.input, write.value)
            )
        if not isinstance(call, Extern) or self.calls[start + 1] != write.calls:
            return False
        before = fillable_argument(call, live.owners)
        if before is None or self._names(write.input, start, live):
            return False
        owner, *others = live.owners(before)
        if others:
            return False
        earlier = next((w for w in self.program.writes if (w.input, w.value) == (write.input, owner)), None)
        buffers = self.program.buffers
        if earlier is None or not same_layout(buffers[before], buffers[write.value]):
            return False
        if before != owner and not fits(buffers[before], buffers[owner]):
            return False
        self.placements[write.value] = before
        return self.place(earlier)

    def _names(self, memory: str, position: int, live: Liveness) -> set[str]:
        """Returns the names through which a step reads the memory of an input or value."""
        call = self.schedule[position]
        names = (
            {load.buffer for s in call.statements() for load in s.value.loads}
            if isinstance(call, Kernel)
            else {*reads(call)}
        )
        return {name for name in names if memory in live.owners(name)}

    def _is_written(self, memory: str, position: int, live: Liveness) -> bool:
        """Returns whether a step writes to the memory of an input."""
        call = self.schedule[position]
        written = call.mutates if isinstance(call, Extern) else ()
        written = (*written, *defined(call)) if isinstance(call, Kernel) or call.out in self.input_of else written
        return any(memory in (*live.owners(name), self.input_of.get(name)) for name in written)


def _is_copy(node: Node, program: LoopProgram) -> bool:
    """Returns whether a loop nest copies a value into an input unchanged."""
    if not isinstance(node, Loops) or node.out.name not in program.inputs or not isinstance(node.body, Load):
        return False
    body, source = node.body, program.buffers[node.body.buffer]
    fits_input = body.valid is None and (source.dtype, source.numel) == (node.out.dtype, node.out.numel)
    return fits_input and flatten(body.index, source.stride) == flatten(node.index, node.out.stride)
