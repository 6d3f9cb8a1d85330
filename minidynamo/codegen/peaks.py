"""Owns the choice to compute some values in a kernel of their own, because fusing them costs memory at the peak.

A kernel allocates what it writes while all that it reads is still there. Cut in two, the first half often writes over
some of that, or lets it die, and the second finds it gone, as in a program that is not fused.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import fx

from minidynamo.codegen.ir.loops import Kernel, LoopProgram, Loops
from minidynamo.codegen.ir.size import hint
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

Scheduled = tuple[LoopProgram, Sequence[Step], HostProgram]
"""The optimized program, its kernels and calls in order, and the host program that runs them."""


class Cut(NamedTuple):
    """Where a kernel is cut: what goes `across` lies in memory. Where nothing does, `first` is what the first half
    computes."""

    across: frozenset[str] = frozenset()
    first: frozenset[str] = frozenset()


def scheduled(
    program: LoopProgram,
    name: str,
    limit: Callable[[bool], int],
    *,
    join: bool,
    verify: bool,
    handing_over: bool,
    dying: Collection[str] = (),
) -> Scheduled:
    """A program, scheduled and with its memory planned. With `join` as much is fused as can be; but where the peak is
    above that of a program that is not fused, kernels are cut as long as this lowers it. Of the inputs, those in
    `dying` die with their last use. `limit` says what a program that is not fused needs: if results stay, or if those
    that are handed over are gone then."""

    def attempt(*cuts: Cut) -> Scheduled:
        apart, alone = frozenset[str]().union(*(cut.across for cut in cuts)), [cut.first for cut in cuts if cut.first]
        loops, steps = schedule(program, join=join, verify=verify, apart=apart, alone=alone)
        return loops, steps, plan_memory(steps, loops, name, handing_over=handing_over)

    best, made = attempt(), list[Cut]()
    cases = _cases(handing_over)
    for _ in range(MOST_CUTS if join else 0):
        counted = [_counted(best[2], dying, taken) for taken in cases]
        peaks = [_peak(host) for host in counted]
        each = [(peak - limit(taken), host) for taken, peak, host in zip(cases, peaks, counted)]
        gone = [_handed_over(best[2]) if taken else frozenset[str]() for taken in cases]
        cuts = (_cut(program, *best[:2], host, above, taken) for (above, host), taken in zip(each, gone) if above > 0)
        more = next((cut for cut in cuts if cut is not None and cut not in made), None)
        if more is None:
            break
        other = attempt(*made, more)
        others = [_peak(_counted(other[2], dying, taken)) for taken in cases]
        if others == peaks or any(new > old for new, old in zip(others, peaks)):
            break
        best, made = other, [*made, more]
    return best


def excess(host: HostProgram, limit: Callable[[bool], int], *, handing_over: bool, dying: Collection[str]) -> int:
    """By how many bytes the peak is above the limit; not positive where it is not."""
    return max(_peak(_counted(host, dying, taken)) - limit(taken) for taken in _cases(handing_over))


def cut_at_peak(host: HostProgram, gm: fx.GraphModule, *, handing_over: bool, dying: Collection[str]) -> frozenset[str]:
    """The nodes of a graph whose folds were cut into chunks, and whose partial results are there at the peak."""
    found: set[str] = set()
    for counted in (_counted(host, dying, taken) for taken in _cases(handing_over)):
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


def _cases(handing_over: bool) -> list[bool]:
    """Whether results that are handed over count as gone then."""
    return [False, True] if handing_over else [False]


def _counted(host: HostProgram, dying: Collection[str], taken: bool) -> HostProgram:
    """`host` with those steps and inputs alone that count: whether other inputs die is for their owners to say. What is
    handed over is gone then if it is `taken`."""
    steps = tuple(Free((step.name,)) if taken and isinstance(step, HandOver) else step for step in host.steps)
    inputs = {name: buffer for name, buffer in host.input_buffers.items() if name in dying}
    return replace(host, input_buffers=inputs, steps=steps)


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


def _cut(
    program: LoopProgram,
    loops: LoopProgram,
    steps: Sequence[Step],
    host: HostProgram,
    excess: int,
    taken: Collection[str],
) -> Cut | None:
    """Where the kernel at the peak had better be cut: where that needs least memory, if results in `taken` are gone
    when they are final. None where the peak is not that of a kernel, no cut helps, or it costs too much for so few
    bytes."""
    kernel = _at_peak(host)
    if kernel is None:
        return None
    position = next(k for k, step in enumerate(steps) if isinstance(step, Kernel) and step.name == kernel.name)
    dying = {*analyze(steps, loops.inputs, loops.outputs).dying(position)} - ({*loops.inputs} - {*host.input_buffers})
    halves = _Halves(split_reductions(program), kernel, dying, loops.inputs, taken)
    costs = {k: halves.cost(k) for k in range(len(halves.nodes)) if halves.traffic(k) <= MOST_TRAFFIC * excess}
    place = min(costs, key=costs.__getitem__)
    return halves.cut(place) if place else None


class _Halves:
    """What a kernel computes, in the order of the program, cut at any place. `dying` is what it reads and what is gone
    behind it; what of that is an input is not written over. What is `taken` is gone behind the half that makes it."""

    def __init__(
        self,
        program: LoopProgram,
        kernel: Kernel,
        dying: Collection[str],
        inputs: Collection[str],
        taken: Collection[str],
    ) -> None:
        self.inputs = inputs
        self.taken = taken
        self.nodes = list(_computed(program, kernel))
        self.written = [buffer.name for buffer in kernel.writes if buffer.name not in inputs]
        self.dying = [buffer.name for buffer in kernel.reads if buffer.name in dying]
        buffers = [*kernel.reads, *(node.out for node in self.nodes)]
        self.bytes = {buffer.name: hint(buffer.nbytes) for buffer in buffers}

    def between(self, place: int) -> frozenset[str]:
        """What is made before `place` and read behind it."""
        return _made(self.nodes[:place]) & _read(self.nodes[place:])

    def cut(self, place: int) -> Cut:
        """The cut at `place`."""
        across = self.between(place)
        return Cut(across) if across else Cut(first=_made(self.nodes[:place]) & frozenset(self.written))

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
        """The bytes of what is written, apart from what may lie where something of the same size is gone."""
        free = [self.bytes[name] for name in gone if name not in self.inputs]
        total = 0
        for size in map(self.bytes.__getitem__, written):
            if size in free:
                free.remove(size)
            else:
                total += size
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


def _made(nodes: Iterable[Loops]) -> frozenset[str]:
    return frozenset(map(made, nodes))


def _read(nodes: Iterable[Loops]) -> frozenset[str]:
    return frozenset(name for node in nodes for name in reads(node))
