"""Owns the choice to compute some values in a separate kernel, because fusing them raises the peak.

A kernel allocates its results while all its operands are still alive. If it is cut in two, the first half often
overwrites or frees some operands, and the second half runs without their memory, as in a program that is not fused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from torch import fx

from minidynamo.codegen.ir.loops import Kernel, LoopProgram, Loops
from minidynamo.codegen.ir.size import hint
from minidynamo.codegen.ir.verify import verify_program
from minidynamo.codegen.memory.plan import Handing, HandOver, HostProgram
from minidynamo.codegen.memory.planner import plan_memory
from minidynamo.codegen.memory.report import memory_plan
from minidynamo.codegen.memory.write_regions import fits
from minidynamo.codegen.scheduling.kernel_reuse import Kernels
from minidynamo.codegen.scheduling.lifetimes import analyze, defines, reads
from minidynamo.codegen.scheduling.schedule import PARTIAL, Step, schedule, split_reductions
from minidynamo.memory.plan import MemoryPlan

MOST_CUTS = 3
"""The most times that a program is rescheduled."""

MOST_TRAFFIC = 64
"""The most bytes that a cut may read back per byte of excess over the limit: a worse ratio costs too much time."""

LEAST_SAVED = 16
"""The fewest bytes that a cut must save per byte that it reads back, if no limit is known."""

Limit = Callable[[bool, bool], int]
"""`limit(taken, held)`: the peak of the unfused program. `taken`: the caller frees results at once when they are handed
over. `held`: the caller holds the results of forward."""


class Scheduled(NamedTuple):
    """A scheduled program."""

    #: The optimized program.
    loops: LoopProgram
    #: Its kernels and calls, in order.
    steps: Sequence[Step]
    #: The host program that runs the steps.
    host: HostProgram
    #: The memory plan of the host program.
    memory: MemoryPlan


class Deaths(NamedTuple):
    """The inputs of a program that die at their last use."""

    #: Inputs that die in any case; those in `returned` only if the caller has released them.
    certain: frozenset[str] = frozenset()
    #: Inputs that forward returned; a subset of `certain`.
    returned: frozenset[str] = frozenset()
    #: Further inputs, which die only if their owners have released them.
    may: frozenset[str] = frozenset()


class Change(NamedTuple):
    """A change to the schedule that may lower the peak: a cut, or a recomputation."""

    #: Values that the first half of a kernel passes to the second half in memory.
    across: frozenset[str] = frozenset()
    #: If no value is passed across the cut: the results of the first half.
    first: frozenset[str] = frozenset()
    #: Values that take no memory, because each reader recomputes them.
    recomputed: frozenset[str] = frozenset()


class _Case(NamedTuple):
    """A combination of facts that are unknown before a call, with the peak to aim for."""

    #: Whether the caller frees results at once when they are handed over.
    taken: bool
    #: The inputs that die at their last use.
    dying: frozenset[str]
    #: The peak should not exceed this many bytes. None: as low as is cheap.
    limit: int | None

    def cost(self, plan: MemoryPlan) -> int:
        """Returns a cost that a change must not raise: the peak, but at least the limit."""
        return max(self.peak(plan), self.limit or 0)

    def peak(self, plan: MemoryPlan) -> int:
        """Returns the most bytes alive at once. Of the inputs, only `dying` count: owners decide the death of
        others."""
        return plan.peak_with_inputs(self.dying, self.taken)

    def at_peak(self, plan: MemoryPlan) -> list[str]:
        """Returns the names of the buffers that are alive at the peak, in order of birth."""
        return [buffer.name for buffer in plan.at_peak(self.dying, self.taken)]


def scheduled(
    program: LoopProgram,
    name: str,
    limit: Limit,
    *,
    join: bool,
    verify: bool,
    handing_over: Handing,
    deaths: Deaths,
) -> Scheduled:
    """Schedules a program and plans its memory.

    With `join` as much as possible is fused. If the peak is above the `limit`, kernels are cut as long as cuts lower
    it. For inputs that may die in backward, kernels are cut where it costs almost nothing.
    """
    kernels = Kernels(verify=verify)

    def attempt(changes: Sequence[Change]) -> Scheduled:
        recomputed = frozenset[str]().union(*(change.recomputed for change in changes))
        loops, steps = schedule(
            program,
            join=join,
            verify=False,
            materialized=frozenset[str]().union(*(change.across for change in changes)) - recomputed,
            exclusive=[change.first for change in changes if change.first],
            recomputed=recomputed,
            kernels=kernels,
        )
        host = plan_memory(steps, loops, name, handing_over=handing_over)
        return Scheduled(loops, steps, host, memory_plan(host))

    best, kept = attempt(()), list[Change]()
    cases = _cases(limit, handing_over, deaths)
    may_die = deaths.may if handing_over else frozenset[str]()
    optimistic = [case._replace(dying=case.dying | may_die, limit=None) for case in cases if may_die]

    def costs(candidate: Scheduled) -> list[int]:
        return [case.cost(candidate.memory) for case in (*cases, *optimistic)]

    def improve(searched: Iterable[_Case]) -> bool:
        """Keeps the first change that lowers the cost of a case and raises no cost; returns whether there is one."""
        nonlocal best
        before = costs(best)
        for change in (change for case in searched for change in _changes(program, best, case)):
            if change in kept:
                continue
            candidate = attempt([*kept, change])
            after = costs(candidate)
            if after != before and all(new <= old for new, old in zip(after, before)):
                best = candidate
                kept.append(change)
                return True
        return False

    for searched in (cases, optimistic):
        for _ in range(MOST_CUTS if join else 0):
            if not improve(searched):
                break
    if verify:
        verify_program(best.loops)
    return best


def excess(memory: MemoryPlan, limit: Limit, *, handing_over: Handing, deaths: Deaths) -> int:
    """Returns the bytes by which the peak exceeds the limit; 0 or less if it does not."""
    return max(case.peak(memory) - (case.limit or 0) for case in _cases(limit, handing_over, deaths))


def cut_at_peak(memory: MemoryPlan, gm: fx.GraphModule, *, handing_over: Handing, deaths: Deaths) -> frozenset[str]:
    """Returns the graph nodes whose folds were cut into chunks, and whose partial results are alive at the peak."""
    alive = {name for case in _cases(lambda *_: 0, handing_over, deaths) for name in case.at_peak(memory)}
    partial = tuple(name.removesuffix(PARTIAL) for name in alive if name.endswith(PARTIAL))
    return frozenset(n.name for n in gm.graph.nodes if any(f"{name}_".startswith(f"{n.name}_") for name in partial))


def _cases(limit: Limit, handing_over: Handing, deaths: Deaths) -> list[_Case]:
    """Returns the combinations of freed or held results, each with its limit."""
    taken = [False, True] if handing_over else [False]
    held = [False, True] if deaths.returned else [False]
    dying = deaths.certain, deaths.certain - deaths.returned
    return [_Case(freed, dying[stay], limit(freed, stay)) for stay, freed in itertools.product(held, taken)]


def _changes(program: LoopProgram, best: Scheduled, case: _Case) -> Iterator[Change]:
    """Yields changes that may lower the peak if it is above the limit: cutting the kernel at the peak, or recomputing
    its operands in it.

    Yields nothing if no kernel is at the peak.
    """
    loops, steps, host, plan = best
    bytes_above = None if case.limit is None else case.peak(plan) - case.limit
    highest = case.at_peak(plan)[-1:] if bytes_above is None or bytes_above > 0 else []
    kernel = next((kernel for kernel in host.kernels for buffer in kernel.writes if [buffer.name] == highest), None)
    if kernel is None:
        return
    position = next(k for k, step in enumerate(steps) if isinstance(step, Kernel) and step.name == kernel.name)
    dying = {*analyze(steps, loops.inputs, loops.outputs).dying(position)} - ({*loops.inputs} - case.dying)
    taken = {step.name for step in host.steps if isinstance(step, HandOver) and case.taken}
    halves = _Halves([*_computed(split_reductions(program), kernel)], kernel, dying, loops.inputs, taken)
    split = halves.best_split(bytes_above)
    if split is not None:
        yield halves.cut(split)
    recomputed = frozenset(buffer.name for buffer in kernel.reads if buffer.name in dying) - {*loops.inputs}
    if bytes_above is not None and recomputed:
        yield Change(recomputed=recomputed)
        yield Change(recomputed=recomputed | _unstored(program, host, recomputed))


class _Halves:
    """A kernel's loop nests in the order of the program, to be cut at any split.

    `dying` are operands that die at the kernel; inputs among them are freed but not overwritten. Results in `taken` are
    handed over, and die after the half that computes them. A `split` is a position in `nodes`.
    """

    def __init__(
        self,
        nodes: Sequence[Loops],
        kernel: Kernel,
        dying: Collection[str],
        inputs: Collection[str],
        taken: Collection[str],
    ) -> None:
        self.inputs = inputs
        self.taken = taken
        self.nodes = nodes
        self.written = [buffer.name for buffer in kernel.writes if buffer.name not in inputs]
        self.dying = [buffer.name for buffer in kernel.reads if buffer.name in dying]
        buffers = [*kernel.reads, *(node.out for node in self.nodes)]
        self.bytes = {buffer.name: hint(buffer.nbytes) for buffer in buffers}
        self.buffers = {buffer.name: buffer for buffer in buffers}

    def between(self, split: int) -> frozenset[str]:
        """Returns the values that are computed before `split` and read after it."""
        return _computed_by(self.nodes[:split]) & _read_by(self.nodes[split:])

    def best_split(self, excess: int | None) -> int | None:
        """Returns where to cut the kernel; None if no cut pays off.

        If the excess over the limit is known, the best cut is the one that reads back least among the cuts that save
        enough; if none saves enough, the cut that saves most. If the excess is unknown, a cut must save LEAST_SAVED
        times the bytes that it reads back.
        """
        splits: list[tuple[int, int, int, int]] = []
        whole = self.cost(0)
        for split in range(1, len(self.nodes)):
            saved, traffic = whole - self.cost(split), self.traffic(split)
            is_cheap = traffic * LEAST_SAVED <= saved if excess is None else traffic <= MOST_TRAFFIC * excess
            enough = excess is not None and saved >= excess
            if saved > 0 and is_cheap:
                splits.append((0, traffic, -saved, split) if enough else (1, -saved, traffic, split))
        return min(splits)[-1] if splits else None

    def cut(self, split: int) -> Change:
        """Returns the cut at `split`."""
        across = self.between(split)
        return Change(across) if across else Change(first=_computed_by(self.nodes[:split]) & frozenset(self.written))

    def traffic(self, split: int) -> int:
        """Returns the bytes that the second half reads from the first half, or reads again."""
        across = self.between(split)
        return self._sum(across or _read_by(self.nodes[:split]) & _read_by(self.nodes[split:]))

    def cost(self, split: int) -> int:
        """Returns the peak of both halves: the most bytes of dying operands and of results."""
        later = _read_by(self.nodes[split:])
        first = [name for name in self.written if name in _computed_by(self.nodes[:split])]
        between = [name for name in self.between(split) if name not in first]
        freed = [name for name in self.dying if name not in later]
        before = self._sum(self.dying)
        highest = before + self._allocated(freed, [*first, *between])
        remaining = [name for name in first if name not in self.taken or name in later]
        rest = before - self._sum(freed) + self._sum([*remaining, *between])
        freed = [*(name for name in self.dying if name in later), *between]
        return max(highest, rest + self._allocated(freed, [name for name in self.written if name not in first]))

    def _sum(self, names: Iterable[str]) -> int:
        return sum(self.bytes[name] for name in names)

    def _allocated(self, freed: Iterable[str], written: Iterable[str]) -> int:
        """Returns the bytes to allocate for `written`, without values that fit into the memory of `freed` values."""
        free = [name for name in freed if name not in self.inputs]
        total = 0
        for name in written:
            reused = next((old for old in free if fits(self.buffers[old], self.buffers[name])), None)
            if reused is None:
                total += self.bytes[name]
            else:
                free.remove(reused)
        return total


def _computed(program: LoopProgram, kernel: Kernel) -> Iterator[Loops]:
    """Yields the loop nests of `program` between a kernel's operands and its results."""
    needed = {buffer.name for buffer in kernel.writes}
    read = {buffer.name for buffer in kernel.reads} - needed
    found: list[Loops] = []
    for node in reversed(program.nodes):
        if isinstance(node, Loops) and defines(node) in needed:
            found.append(node)
            needed.update(name for name in reads(node) if name not in read)
    return reversed(found)


def _unstored(program: LoopProgram, host: HostProgram, names: Collection[str]) -> frozenset[str]:
    """Returns the values that `names` are computed from and that kernels of `host` do not write to memory."""
    found, needed = set[str](), {*names}
    stored = {*host.inputs, *(buffer.name for kernel in host.kernels for buffer in kernel.writes)}
    for node in reversed(program.nodes):
        if isinstance(node, Loops) and defines(node) in needed:
            found.update(name for name in reads(node) if name not in stored)
            needed |= found
    return frozenset(found)


def _computed_by(nodes: Iterable[Loops]) -> frozenset[str]:
    return frozenset(map(defines, nodes))


def _read_by(nodes: Iterable[Loops]) -> frozenset[str]:
    return frozenset(name for node in nodes for name in reads(node))
