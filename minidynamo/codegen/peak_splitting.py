"""Owns the choice to compute some values in a kernel of their own, because fusing them costs memory at the peak.

A kernel allocates what it writes while all that it reads is still there. Cut in two, the first half often writes over
some of that, or lets it die, and the second finds it gone, as in a program that is not fused.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import fx

from minidynamo.codegen.ir.loops import Kernel, LoopProgram, Loops
from minidynamo.codegen.ir.size import hint
from minidynamo.codegen.memory.buffer_reuse import fits
from minidynamo.codegen.memory.liveness import analyze
from minidynamo.codegen.memory.plan import Allocate, Free, HandOver, HostProgram, Launch, Reuse
from minidynamo.codegen.memory.planner import plan_memory
from minidynamo.codegen.scheduling.lifetimes import made, reads
from minidynamo.codegen.scheduling.schedule import Step, schedule
from minidynamo.codegen.scheduling.split import PARTIAL, split_reductions

MOST_CUTS = 3
"""How often a program is scheduled again, at most."""

MOST_TRAFFIC = 64
"""How many bytes may be read back behind a cut for each byte by which the peak is too high: more would cost time for
next to nothing."""

LEAST_SAVED = 16
"""How many bytes a cut has to save for each that is read back, where it is not known whether the peak is too high."""

Scheduled = tuple[LoopProgram, Sequence[Step], HostProgram]
"""The optimized program, its kernels and calls in order, and the host program that runs them."""

Limit = Callable[[bool, bool], int]
"""What a program that is not fused needs: if results that are handed over are gone then, and if those of forward are
held."""


class Deaths(NamedTuple):
    """Of the inputs of a program those that die with their last use. Of them those that forward `returned` do so if the
    caller has let go of them; and of others those do that `may` die, if their owners have."""

    certain: frozenset[str] = frozenset()
    returned: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()


class Change(NamedTuple):
    """Where a kernel is cut: what goes `across` lies in memory. Where nothing does, `first` is what the first half
    computes. Or what is computed `again` where it is read, so that it does not lie in memory."""

    across: frozenset[str] = frozenset()
    first: frozenset[str] = frozenset()
    again: frozenset[str] = frozenset()


class _Case(NamedTuple):
    """What may be: results that are handed over are gone then if they are `taken`, and the inputs in `dying` with their
    last use. The peak should not be above `limit`; without one, as low as it can be for little."""

    taken: bool
    dying: frozenset[str]
    limit: int | None

    def badness(self, host: HostProgram) -> int:
        """What a change must not raise: the peak, as far as it is above the limit."""
        return max(self.peak(host), self.limit or 0)

    def counted(self, host: HostProgram) -> HostProgram:
        """`host` with those steps and inputs alone that count: whether other inputs die is for their owners to say."""
        steps = tuple(Free((step.name,)) if self.taken and isinstance(step, HandOver) else step for step in host.steps)
        inputs = {name: buffer for name, buffer in host.input_buffers.items() if name in self.dying}
        return replace(host, input_buffers=inputs, steps=steps)

    def peak(self, host: HostProgram) -> int:
        """The most bytes at one time."""
        return _peak(self.counted(host))


def scheduled(
    program: LoopProgram,
    name: str,
    limit: Limit,
    *,
    join: bool,
    verify: bool,
    handing_over: bool,
    deaths: Deaths,
) -> Scheduled:
    """A program, scheduled and with its memory planned. With `join` as much is fused as can be; but where the peak is
    above the `limit`, kernels are cut as long as this lowers it. For inputs that may die in backward kernels are cut
    where it costs next to nothing."""

    def attempt(*changes: Change) -> Scheduled:
        apart, again = (frozenset[str]().union(*found) for found in zip(*((c.across, c.again) for c in changes)))
        alone = [change.first for change in changes if change.first]
        loops, steps = schedule(program, join=join, verify=verify, apart=apart, alone=alone, again=again)
        return loops, steps, plan_memory(steps, loops, name, handing_over=handing_over)

    best, made = attempt(Change()), list[Change]()
    cases = _cases(limit, handing_over, deaths)
    gone = deaths.may if handing_over else frozenset[str]()
    left = [case._replace(dying=case.dying | gone, limit=None) for case in cases if gone]
    for searched in (cases, left):
        for _ in range(MOST_CUTS if join else 0):
            before = [case.badness(best[2]) for case in (*cases, *left)]
            changes = (change for case in searched for change in _changes(program, best, case) if change not in made)
            for more in changes:
                other = attempt(Change(), *made, more)
                behind = [case.badness(other[2]) for case in (*cases, *left)]
                if behind != before and all(new <= old for new, old in zip(behind, before)):
                    best, made = other, [*made, more]
                    break
            else:
                break
    return best


def excess(host: HostProgram, limit: Limit, *, handing_over: bool, deaths: Deaths) -> int:
    """By how many bytes the peak is above the limit; not positive where it is not."""
    return max(case.peak(host) - (case.limit or 0) for case in _cases(limit, handing_over, deaths))


def cut_at_peak(host: HostProgram, gm: fx.GraphModule, *, handing_over: bool, deaths: Deaths) -> frozenset[str]:
    """The nodes of a graph whose folds were cut into chunks, and whose partial results are there at the peak."""
    found: set[str] = set()
    for counted in (case.counted(host) for case in _cases(lambda *_: 0, handing_over, deaths)):
        for step in counted.steps[: _first_at(counted, _peak(counted))]:
            match step:
                case Allocate():
                    found.add(step.buffer.name)
                case Reuse():
                    found = found - {step.source} | {step.buffer.name}
                case Free():
                    found.difference_update(step.names)
    partial = tuple(name.removesuffix(PARTIAL) for name in found if name.endswith(PARTIAL))
    return frozenset(n.name for n in gm.graph.nodes if any(f"{name}_".startswith(f"{n.name}_") for name in partial))


def _first_at(host: HostProgram, bytes_held: int) -> int:
    """After how many steps so many bytes are held for the first time."""
    return bisect.bisect_left(range(len(host.steps) + 1), bytes_held, key=lambda steps: _peak(host, steps))


def _cases(limit: Limit, handing_over: bool, deaths: Deaths) -> list[_Case]:
    """What may be of results that are handed over and of those of forward, with what may be needed then."""
    taken = [False, True] if handing_over else [False]
    held = [False, True] if deaths.returned else [False]
    dying = deaths.certain, deaths.certain - deaths.returned
    return [_Case(gone, dying[stay], limit(gone, stay)) for stay, gone in itertools.product(held, taken)]


def _handed_over(host: HostProgram) -> frozenset[str]:
    return frozenset(step.name for step in host.steps if isinstance(step, HandOver))


def _peak(host: HostProgram, steps: int | None = None) -> int:
    """The most bytes that the first steps hold."""
    return replace(host, steps=host.steps[:steps]).peak_bytes()


def _at_peak(host: HostProgram) -> Kernel | None:
    """The kernel for whose results memory is allocated when the peak is reached."""
    highest = _peak(host)
    first = _first_at(host, highest)
    following = host.steps[max(first - 1, 0) :]
    if not following or not isinstance(following[0], Allocate):
        return None
    return next((step.kernel for step in following if isinstance(step, Launch)), None)


def _changes(program: LoopProgram, best: Scheduled, case: _Case) -> Iterator[Change]:
    """What may lower the peak where it is above the limit: to cut the kernel at the peak, or to compute what it reads
    again in it. Nothing where the peak is not that of a kernel."""
    loops, steps, host = best
    host, taken = case.counted(host), _handed_over(host) if case.taken else frozenset[str]()
    above = None if case.limit is None else _peak(host) - case.limit
    kernel = _at_peak(host) if above is None or above > 0 else None
    if kernel is None:
        return
    position = next(k for k, step in enumerate(steps) if isinstance(step, Kernel) and step.name == kernel.name)
    dying = {*analyze(steps, loops.inputs, loops.outputs).dying(position)} - ({*loops.inputs} - {*host.input_buffers})
    computed = [*_computed(split_reductions(program), kernel)]
    orders = computed, _result_by_result(computed, kernel)
    cut = _cut([_Halves(nodes, kernel, dying, loops.inputs, taken) for nodes in orders], above)
    if cut is not None:
        yield cut
    if above is not None:
        again = frozenset(buffer.name for buffer in kernel.reads if buffer.name in dying) - {*loops.inputs}
        if again:
            yield Change(again=again)


def _cut(orders: Sequence[_Halves], excess: int | None) -> Change | None:
    """Where a kernel, in one of these orders, is cut by which the peak is too high: where least is read again, if that
    is enough, or where that needs least memory. Where by how much is not known, that is done if it saves much more than
    is read again. None where no cut helps, or it costs too much for so few bytes."""
    found: list[tuple[tuple[int, int, int], _Halves, int]] = []
    for halves in orders:
        whole = halves.cost(0)
        for place in range(1, len(halves.nodes)):
            saved, traffic = whole - halves.cost(place), halves.traffic(place)
            is_cheap = traffic * LEAST_SAVED <= saved if excess is None else traffic <= MOST_TRAFFIC * excess
            enough = excess is not None and saved >= excess
            if saved > 0 and is_cheap:
                found.append(((0, traffic, -saved) if enough else (1, -saved, traffic), halves, place))
    if not found:
        return None
    _, halves, place = min(found, key=lambda one: one[0])
    return halves.cut(place)


class _Halves:
    """What a kernel computes, in some order, cut at any place. `dying` is what it reads and what is gone behind it;
    what of that is an input is not written over. What is `taken` is gone behind the half that makes it."""

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

    def between(self, place: int) -> frozenset[str]:
        """What is made before `place` and read behind it."""
        return _made(self.nodes[:place]) & _read(self.nodes[place:])

    def cut(self, place: int) -> Change:
        """The cut at `place`."""
        across = self.between(place)
        return Change(across) if across else Change(first=_made(self.nodes[:place]) & frozenset(self.written))

    def traffic(self, place: int) -> int:
        """The bytes of what the second half reads of the first, or reads as well."""
        across = self.between(place)
        return self._sum(across or _read(self.nodes[:place]) & _read(self.nodes[place:]))

    def cost(self, place: int) -> int:
        """The most bytes of what dies and what is written, in the two halves."""
        later = _read(self.nodes[place:])
        first = [name for name in self.written if name in _made(self.nodes[:place])]
        between = [name for name in self.between(place) if name not in first]
        gone = [name for name in self.dying if name not in later]
        before = self._sum(self.dying)
        highest = before + self._new(gone, [*first, *between])
        stays = [name for name in first if name not in self.taken or name in later]
        rest = before - self._sum(gone) + self._sum([*stays, *between])
        gone = [*(name for name in self.dying if name in later), *between]
        return max(highest, rest + self._new(gone, [name for name in self.written if name not in first]))

    def _sum(self, names: Iterable[str]) -> int:
        return sum(self.bytes[name] for name in names)

    def _new(self, gone: Iterable[str], written: Iterable[str]) -> int:
        """The bytes of what is written, apart from what may lie where something that it fits is gone."""
        free = [name for name in gone if name not in self.inputs]
        total = 0
        for name in written:
            place = next((old for old in free if fits(self.buffers[old], self.buffers[name])), None)
            if place is None:
                total += self.bytes[name]
            else:
                free.remove(place)
        return total


def _computed(program: LoopProgram, kernel: Kernel) -> Iterator[Loops]:
    """The loop nests of `program` that lie between what a kernel reads and what it writes."""
    needed = {buffer.name for buffer in kernel.writes}
    given = {buffer.name for buffer in kernel.reads} - needed
    found: list[Loops] = []
    for node in reversed(program.nodes):
        if isinstance(node, Loops) and made(node) in needed:
            found.append(node)
            needed.update(name for name in reads(node) if name not in given)
    return reversed(found)


def _result_by_result(nodes: Sequence[Loops], kernel: Kernel) -> list[Loops]:
    """These nodes in another order: for each result of the kernel what it is computed from, as far as that is not there
    yet, and what is left."""
    ordered: dict[str, Loops] = {}
    for result in kernel.writes:
        needed = {result.name}
        for node in reversed(nodes):
            needed.update(reads(node) if made(node) in needed else ())
        ordered |= {made(node): node for node in nodes if made(node) in needed and made(node) not in ordered}
    ordered |= {made(node): node for node in nodes if made(node) not in ordered}
    return list(ordered.values())


def _made(nodes: Iterable[Loops]) -> frozenset[str]:
    return frozenset(map(made, nodes))


def _read(nodes: Iterable[Loops]) -> frozenset[str]:
    return frozenset(name for node in nodes for name in reads(node))
