"""Owns the choice to compute some values in a kernel of their own, because fusing them costs memory at the peak.

A kernel allocates what it writes while all that it reads is still there. Cut in two behind what reads the memory that
dies in it, the first half often writes over that, and the second finds it gone, as in a program that is not fused.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import replace

from minidynamo.codegen.ir.loops import Kernel, LoopProgram, Loops
from minidynamo.codegen.memory.liveness import analyze
from minidynamo.codegen.memory.plan import Allocate, HostProgram, Launch
from minidynamo.codegen.memory.planner import plan_memory
from minidynamo.codegen.scheduling.lifetimes import made, reads
from minidynamo.codegen.scheduling.schedule import Step, schedule

MOST_CUTS = 3
"""How often a program is scheduled again, at most."""

Scheduled = tuple[LoopProgram, Sequence[Step], HostProgram]
"""The optimized program, its kernels and calls in order, and the host program that runs them."""


def scheduled(
    program: LoopProgram, name: str, limit: Callable[[], int], *, join: bool, verify: bool, handing_over: bool
) -> Scheduled:
    """A program, scheduled and with its memory planned. With `join` as much is fused as can be; but where the peak is
    above `limit()`, that of a program that is not fused, kernels are cut as long as this lowers it."""

    def attempt(apart: frozenset[str] = frozenset()) -> Scheduled:
        loops, steps = schedule(program, join=join, verify=verify, apart=apart)
        return loops, steps, plan_memory(steps, loops, name, handing_over=handing_over)

    best, apart = attempt(), frozenset[str]()
    for _ in range(MOST_CUTS if join else 0):
        peak = _peak(best[2])
        more = _first_readers(program, *best) - apart
        if not more or peak <= limit():
            break
        apart |= more
        other = attempt(apart)
        if _peak(other[2]) >= peak:
            break
        best = other
    return best


def _peak(host: HostProgram, steps: int | None = None) -> int:
    """The most bytes that the first steps allocate and hold. Whether inputs die is for their owners to say."""
    return replace(host, input_buffers={}, steps=host.steps[:steps]).peak_bytes()


def _first_readers(program: LoopProgram, loops: LoopProgram, steps: Sequence[Step], host: HostProgram) -> set[str]:
    """What the loop nests of `program` make that read what dies in the kernel at the peak; nothing where the peak is
    not that of a kernel."""
    kernel = _at_peak(host)
    names = [step.name if isinstance(step, Kernel) else None for step in steps]
    if kernel is None:
        return set()
    dying = {*analyze(steps, loops.inputs, loops.outputs).dying(names.index(kernel.name))}
    dying &= {buffer.name for buffer in kernel.reads if buffer.name not in loops.inputs}
    return {made(node) for node in program.nodes if isinstance(node, Loops) and not dying.isdisjoint(reads(node))}


def _at_peak(host: HostProgram) -> Kernel | None:
    """The kernel for whose results memory is allocated when the peak is reached."""
    highest = _peak(host)
    first = bisect.bisect_left(range(len(host.steps) + 1), highest, key=lambda steps: _peak(host, steps))
    following = host.steps[max(first - 1, 0) :]
    if not following or not isinstance(following[0], Allocate):
        return None
    return next((step.kernel for step in following if isinstance(step, Launch)), None)
