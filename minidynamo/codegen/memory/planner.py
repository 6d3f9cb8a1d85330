"""Owns the memory decisions: buffers to allocate, reuse and write in place, and the death of each value.

The planner works on layouts and names and needs no device. The next kernel reuses the memory of a dead tensor, or
the tensor is freed at once; no memory is kept for later steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from minidynamo.codegen.ir.loops import Buffer, Compute, Extern, GetItem, Kernel, LoopProgram, Name, names_in
from minidynamo.codegen.memory.input_placement import place_in_inputs
from minidynamo.codegen.memory.plan import (
    Allocate,
    Free,
    Handing,
    HandOver,
    HostProgram,
    Launch,
    Overwrite,
    Return,
    Reuse,
    Step,
    mentioned,
    read_by,
)
from minidynamo.codegen.memory.write_regions import (
    argument_orders,
    fillable_argument,
    fits,
    in_place_operator,
    may_overwrite,
    same_layout,
)
from minidynamo.codegen.scheduling.lifetimes import Call, analyze
from minidynamo.compat import OpOverload
from minidynamo.memory.plan import SMALL_GRADIENTS

_aten = torch.ops.aten

# Operators whose result, a single number, may stay in the memory of the elements: the CPU kernel reduces the elements
# in place. If the number's memory is reused, the elements' memory lives on.
_KEEP_ELEMENTS = frozenset(
    (
        _aten.binary_cross_entropy.default,
        _aten.mse_loss.default,
        _aten.smooth_l1_loss.default,
        _aten.soft_margin_loss.default,
    )
)


def plan_memory(
    schedule: Sequence[Call], program: LoopProgram, name: str, *, handing_over: Handing = Handing.NONE
) -> HostProgram:
    """Plans the host program that runs `schedule` with as little memory as the order of the steps allows.

    With `handing_over` each tensor among the results is handed over as soon as it is final, unless all of them together
    are small and the program does not run in steps.
    """
    steps = Planner(schedule, program, handing_over).run()
    launched = tuple(s.kernel for s in steps if isinstance(s, Launch))
    layouts = {n: program.buffers[n] for n in program.inputs if n in program.buffers}
    prelude = _needed_numbers(program.prelude, steps)
    facts = program.outputs, program.constants, layouts, prelude
    return HostProgram(name, program.inputs, tuple(steps), launched, *facts, handing_over=handing_over)


def _needed_numbers(prelude: Sequence[Compute], steps: Sequence[Step]) -> tuple[Compute, ...]:
    """Returns the numbers of the prelude that a step needs, directly or through other numbers, and the computations
    that may raise errors."""
    needed = {name for step in steps for name in read_by(step)}
    numbers: list[Compute] = []
    for number in reversed(prelude):
        if number.out in needed or number.raises:
            numbers.append(number)
            needed.update(mentioned(number.args))
    return tuple(reversed(numbers))


class Planner:
    """Plans memory in one walk over a schedule."""

    def __init__(self, schedule: Sequence[Call], program: LoopProgram, handing_over: Handing = Handing.NONE) -> None:
        self.program = program
        self.schedule, self.placements = place_in_inputs(schedule, program)
        self.live = analyze(self.schedule, program.inputs, program.outputs, self.placements)
        self.handing_over = handing_over
        self.handovers = self._find_handovers() if handing_over else {}
        # Live tensors whose memory this program owns, by their present names.
        self.owned: dict[str, Buffer] = {}
        # Inputs that are numbers, and numbers computed from inputs. Numbers take no memory. Calls, sizes and kernels
        # read them.
        self.numbers = {*program.numbers, *(number.out for number in program.prelude)}
        # Results of extern calls, including tuples, that share memory with no other value.
        self.fresh: set[str] = set()
        self.steps: list[Step] = []
        # Tensors of this program that torch has written to, and counted in their version counters; and new tensors that
        # an operator has filled, which torch counts at the call.
        self.version_bumped: set[str] = set()
        self.filled: set[str] = set()
        # Tensors that died since the last step that computes something; the next kernel may reuse their memory.
        self.dead_buffers: list[str] = []

    def run(self) -> list[Step]:
        """Returns all steps, with a Free after each last use."""
        self._free(self.live.dying(-1))
        self._hand_over(-1)
        for k, call in enumerate(self.schedule):
            renamed: set[str] = set()
            if isinstance(call, Kernel):
                renamed = self._launch(call, k)
            else:
                if isinstance(call, Extern) and not call.is_view:
                    self._free(self.dead_buffers)
                    self.dead_buffers = []
                orders = argument_orders(call) if isinstance(call, Extern) else ()
                renamed = next(filter(None, (self._fill_in_place(order, k) for order in orders)), set())
                if not renamed:
                    self.steps.append(call)
                    self._count_writes(call)
                if call.out not in self.placements and (renamed or self._is_new(call)) and call.layout is not None:
                    self.owned[call.out] = call.layout
                    if isinstance(call, Extern) and not any(names_in((call.args, [a for _, a in call.kwargs]))):
                        self.filled.add(call.out)
            dead = [n for n in self.live.dying(k) if n not in renamed and n not in self.program.constants]
            self.dead_buffers += [n for n in dead if self._is_reusable(n, k)]
            self._free([n for n in dead if n not in self.dead_buffers])
            self._hand_over(k)
        self._free(self.dead_buffers)
        returned = dict.fromkeys(names_in(self.program.outputs))
        version_bumped = tuple(name for name in returned if not self.version_bumped.isdisjoint(self.live.owners(name)))
        self.steps.append(Return(self.program.outputs, version_bumped))
        return self.steps

    def _fill_in_place(self, call: Extern, position: int) -> set[str]:
        """Lets a call that fills a copy of its first argument fill the argument itself, if the argument dies; returns
        the names whose memory is now in use under another name."""
        argument = fillable_argument(call, self.live.owners)
        if argument is None or call.layout is None:
            return set()
        out = replace(call.layout, name=call.out)
        filling = replace(call, op=in_place_operator(call), args=(Name(call.out), *call.args[1:]), mutates=(call.out,))
        if call.out in self.placements:
            self.steps += [Overwrite(out, argument), filling]
            return {call.out}
        dies = self.live.last_use[argument] == position and self._is_reusable(argument, position)
        if not dies or not same_layout(self.owned[argument], call.layout):
            return set()
        self.steps += [Reuse(out, argument), filling]
        self.version_bumped.add(call.out)
        return {argument}

    def _count_writes(self, call: Extern | GetItem) -> None:
        """Records the tensors of this program that a call writes."""
        written = call.mutates if isinstance(call, Extern) else ()
        self.version_bumped.update(owner for name in written for owner in self.live.owners(name) if owner in self.owned)

    def _is_new(self, call: Extern | GetItem) -> bool:
        """Returns whether the result is in memory of its own, with the size of the result.

        Torch's operators declare their aliases. Declarations of other operators are not trusted.
        """
        if isinstance(call, GetItem):
            return call.source in self.fresh
        is_new = isinstance(call.op, OpOverload) and call.op.namespace == "aten" and not call.aliases
        is_new = is_new and call.op not in _KEEP_ELEMENTS
        if is_new:
            self.fresh.add(call.out)
        return is_new

    def _free(self, names: Sequence[str]) -> None:
        """Frees tensors and tuples of tensors. Numbers stay bound until the end."""
        names = [name for name in names if name not in self.numbers]
        if names:
            self.steps.append(Free(tuple(names)))

    def _hand_over(self, step: int) -> None:
        """Hands over the results that are final after a step."""
        self.steps += self.handovers.get(step, ())

    def _find_handovers(self) -> dict[float, list[Step]]:
        """Returns, per step, the results to hand over after the step. A result that appears twice among the outputs is
        returned, not handed over. Small gradients are returned as well, since a call per gradient takes longer."""
        positions: dict[str, list[int]] = {}
        for position, value in enumerate(self.program.outputs):
            if isinstance(value, Name):
                positions.setdefault(value.name, []).append(position)
        size = sum(self.program.buffers[name].nbytes for name in positions if name in self.program.buffers)
        if self.handing_over != Handing.IN_STEPS and isinstance(size, int) and size <= SMALL_GRADIENTS:
            return {}
        handovers: dict[float, list[Step]] = {}
        for name, (position, *others) in positions.items():
            if not others and name in self.program.buffers and name in self.live.final:
                handovers.setdefault(self.live.final[name], []).append(HandOver(name, position))
        return handovers

    def _is_reusable(self, name: str, position: int) -> bool:
        """Returns whether the memory of `name` belongs to this program and is dead after step `position`."""
        return name in self.owned and self.live.storage_end[name] <= position

    def _reusable_for(self, names: Iterable[str], out: Buffer, kernel: Kernel | None = None) -> str | None:
        """Returns a tensor among `names` whose memory `out` can take, preferably a tensor with the same layout.

        A `kernel` must be able to write over the tensors that it reads.
        """
        fitting = [name for name in names if fits(self.owned[name], out)]
        fitting.sort(key=lambda name: not same_layout(self.owned[name], out))
        return next((name for name in fitting if kernel is None or may_overwrite(kernel, name, out.name)), None)

    def _launch(self, kernel: Kernel, position: int) -> set[str]:
        """Allocates or reuses memory for the kernel's results and launches the kernel; returns the names whose memory
        it reuses."""
        dying = [b for b in kernel.reads if self.live.last_use[b.name] == position]
        views = [b.name for b in kernel.reads if b.name in self.live.roots]
        # A view may show the storage at other offsets than the kernel writes.
        seen_as_views = {owner for name in views for owner in self.live.owners(name)}
        candidates = [b.name for b in dying if self._is_reusable(b.name, position) and b.name not in seen_as_views]
        renamed: dict[str, str] = {}
        reused: list[Step] = []
        fresh: list[Step] = []
        for out in kernel.writes:
            if out.name in self.program.inputs:
                continue
            if out.name in self.placements:
                reused.append(Overwrite(out, self.placements[out.name]))
                continue
            self.owned[out.name] = out
            reused_name = self._reusable_for(self.dead_buffers, out)
            if reused_name is not None:
                self.dead_buffers.remove(reused_name)
            else:
                reused_name = self._reusable_for(candidates, out, kernel)
                if reused_name is None:
                    fresh.append(Allocate(out))
                    continue
                candidates.remove(reused_name)
                renamed[reused_name] = out.name
            reused.append(Reuse(out, reused_name, relaid=not same_layout(self.owned[reused_name], out)))
        self.steps += reused
        version_bumped = self.version_bumped | self.filled
        self.version_bumped.update(
            s.buffer.name for s in reused if isinstance(s, Reuse) and (s.relaid or s.source in version_bumped)
        )
        self._free(self.dead_buffers)
        self.dead_buffers = []
        self.steps += fresh
        if kernel.work:
            self.steps.append(Launch(kernel, tuple(renamed.get(b.name, b.name) for b in kernel.arguments)))
        return set(renamed)
