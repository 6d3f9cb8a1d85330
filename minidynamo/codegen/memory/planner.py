"""Owns the decisions about memory: what is allocated, reused, written in place, and when each value dies.

It works on layouts and names and needs no device. A dead tensor is either taken over by the next kernel or freed at
once; nothing is held back for later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from minidynamo.codegen.ir.loops import Buffer, Compute, Extern, GetItem, Kernel, LoopProgram, Name, names_in
from minidynamo.codegen.memory.buffer_reuse import filled, fits, in_place, may_overwrite, same_layout
from minidynamo.codegen.memory.input_placement import find_places
from minidynamo.codegen.memory.liveness import Call, analyze
from minidynamo.codegen.memory.plan import (
    Allocate,
    Free,
    HandOver,
    HostProgram,
    Launch,
    Place,
    Return,
    Reuse,
    Step,
    mentioned,
    read_by,
)
from minidynamo.compat import OpOverload


def plan_memory(
    schedule: Sequence[Call], program: LoopProgram, name: str, *, handing_over: bool = False
) -> HostProgram:
    """The host program that runs `schedule` with as little memory as its order allows.

    With `handing_over` each tensor among the results is handed over as soon as it is final.
    """
    steps = Planner(schedule, program, handing_over).run()
    launched = tuple(s.kernel for s in steps if isinstance(s, Launch))
    layouts = {n: program.buffers[n] for n in program.inputs if n in program.buffers}
    prelude = _needed(program.prelude, steps)
    return HostProgram(
        name, program.inputs, tuple(steps), launched, program.outputs, program.constants, layouts, prelude
    )


def _needed(prelude: Sequence[Compute], steps: Sequence[Step]) -> tuple[Compute, ...]:
    """Those numbers of the prelude that a step needs, directly or through others, and what raises errors."""
    needed = {name for step in steps for name in read_by(step)}
    kept: list[Compute] = []
    for number in reversed(prelude):
        if number.out in needed or number.raises:
            kept.append(number)
            needed.update(mentioned(number.args))
    return tuple(reversed(kept))


class Planner:
    """One walk over a schedule. `own` are tensors that were made here and are alive under that name."""

    def __init__(self, schedule: Sequence[Call], program: LoopProgram, handing_over: bool = False) -> None:
        self.program = program
        self.schedule, self.places = find_places(schedule, program)
        self.live = analyze(self.schedule, program.inputs, program.outputs, self.places)
        self.handed = self._handed() if handing_over else {}
        self.own: dict[str, Buffer] = {}
        # Inputs that are numbers, and numbers made of inputs. They hold no memory, and sizes and kernels read them
        # besides the calls whose arguments name them.
        self.numbers = {*program.numbers, *(number.out for number in program.prelude)}
        # Results of extern calls, tuples among them, that share memory with nothing.
        self.fresh: set[str] = set()
        self.steps: list[Step] = []
        # Tensors of our own that torch has written to, and counts as written; and those that an operator has filled,
        # which torch counts where it is called.
        self.counted: set[str] = set()
        self.filled: set[str] = set()
        # Dead tensors that only views have been made since; the next kernel may take them over.
        self.waiting: list[str] = []

    def run(self) -> list[Step]:
        """All steps, with a Free behind each last use."""
        self._free(self.live.dying(-1))
        self._hand_over(-1)
        for k, call in enumerate(self.schedule):
            taken: set[str] = set()
            if isinstance(call, Kernel):
                taken = self._launch(call, k)
            else:
                if isinstance(call, Extern) and not call.is_view:
                    self._free(self.waiting)
                    self.waiting = []
                taken = self._take_over(call, k)
                if not taken:
                    self.steps.append(call)
                if call.out not in self.places and (taken or self._is_new(call)) and call.layout is not None:
                    self.own[call.out] = call.layout
                    if isinstance(call, Extern) and not any(names_in((call.args, [a for _, a in call.kwargs]))):
                        self.filled.add(call.out)
            dead = [n for n in self.live.dying(k) if n not in taken and n not in self.program.constants]
            self.waiting += [n for n in dead if self._is_reusable(n, k)]
            self._free([n for n in dead if n not in self.waiting])
            self._hand_over(k)
        self._free(self.waiting)
        returned = dict.fromkeys(names_in(self.program.outputs))
        counted = tuple(name for name in returned if not self.counted.isdisjoint(self.live.owners(name)))
        self.steps.append(Return(self.program.outputs, counted))
        return self.steps

    def _take_over(self, call: Extern | GetItem, position: int) -> set[str]:
        """Let a call that fills a copy of its first argument fill the argument itself, where that dies; its name."""
        first = filled(call, self.live.owners) if isinstance(call, Extern) else None
        if first is None or not isinstance(call, Extern) or call.layout is None:
            return set()
        out = replace(call.layout, name=call.out)
        filling = replace(call, op=in_place(call), args=(Name(call.out), *call.args[1:]), mutates=(call.out,))
        if call.out in self.places:
            self.steps += [Place(out, first), filling]
            return {call.out}
        dies = self.live.last_use[first] == position and self._is_reusable(first, position)
        if not dies or not same_layout(self.own[first], call.layout):
            return set()
        self.steps += [Reuse(out, first), filling]
        self.counted.add(call.out)
        return {first}

    def _is_new(self, call: Extern | GetItem) -> bool:
        """Whether the result lies in memory that nothing else knows. Torch's own operators declare what they alias;
        what others promise is not relied on."""
        if isinstance(call, GetItem):
            return call.source in self.fresh
        new = isinstance(call.op, OpOverload) and call.op.namespace == "aten" and not call.aliases
        if new:
            self.fresh.add(call.out)
        return new

    def _free(self, names: Sequence[str]) -> None:
        """Free tensors, and tuples of them. Numbers stay to the end."""
        names = [name for name in names if name not in self.numbers]
        if names:
            self.steps.append(Free(tuple(names)))

    def _hand_over(self, step: int) -> None:
        """Hand over the results that are final behind a step."""
        self.steps += self.handed.get(step, ())

    def _handed(self) -> dict[float, list[Step]]:
        """Which results are handed over behind each step. What is returned twice has to be returned."""
        positions: dict[str, list[int]] = {}
        for position, value in enumerate(self.program.outputs):
            if isinstance(value, Name):
                positions.setdefault(value.name, []).append(position)
        handed: dict[float, list[Step]] = {}
        for name, (position, *more) in positions.items():
            if not more and name in self.program.buffers and name in self.live.final:
                handed.setdefault(self.live.final[name], []).append(HandOver(name, position))
        return handed

    def _is_reusable(self, name: str, position: int) -> bool:
        return name in self.own and self.live.storage_end[name] <= position

    def _fitting(self, names: Iterable[str], out: Buffer, kernel: Kernel | None = None) -> str | None:
        """Which of these tensors `out` can lie in, preferably one that need not be laid out anew. What the `kernel`
        reads it has to be able to write over."""
        found = [name for name in names if fits(self.own[name], out)]
        found.sort(key=lambda name: not same_layout(self.own[name], out))
        return next((name for name in found if kernel is None or may_overwrite(kernel, name, out.name)), None)

    def _launch(self, kernel: Kernel, position: int) -> set[str]:
        """Find memory for what the kernel writes and launch it; the names that it took over."""
        dying = [b for b in kernel.reads if self.live.last_use[b.name] == position]
        views = [b.name for b in kernel.reads if b.name in self.live.roots]
        seen_as_views = {owner for name in views for owner in self.live.owners(name)}  # which show other places
        candidates = [b.name for b in dying if self._is_reusable(b.name, position) and b.name not in seen_as_views]
        renamed: dict[str, str] = {}
        reused: list[Step] = []
        fresh: list[Step] = []
        for out in kernel.writes:
            if out.name in self.program.inputs:
                continue
            if out.name in self.places:
                reused.append(Place(out, self.places[out.name]))
                continue
            self.own[out.name] = out
            place = self._fitting(self.waiting, out)
            if place is not None:
                self.waiting.remove(place)
            else:
                place = self._fitting(candidates, out, kernel)
                if place is None:
                    fresh.append(Allocate(out))
                    continue
                candidates.remove(place)
                renamed[place] = out.name
            reused.append(Reuse(out, place, relaid=not same_layout(self.own[place], out)))
        self.steps += reused
        counted = self.counted | self.filled
        self.counted.update(s.buffer.name for s in reused if isinstance(s, Reuse) and (s.relaid or s.source in counted))
        self._free(self.waiting)
        self.waiting = []
        self.steps += fresh
        if kernel.work:
            self.steps.append(Launch(kernel, tuple(renamed.get(b.name, b.name) for b in kernel.arguments)))
        return set(renamed)
