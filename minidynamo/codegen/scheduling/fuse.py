"""Owns the second step of fusion: which loop nests share a kernel, and the order of kernels and extern calls.

It moves nothing across what lifetimes forbid, makes no circles, and decides the same every time.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import operator
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from minidynamo.codegen.ir.expr import loads
from minidynamo.codegen.ir.loops import Extern, LoopProgram, Loops, Node
from minidynamo.codegen.ir.size import hint
from minidynamo.codegen.scheduling.domain import Domain, Placed, domain_of, place, place_all, size
from minidynamo.codegen.scheduling.lifetimes import Lifetimes, made, reads, stores

MOST_NODES = 64
MOST_BUFFERS = 40
"""Larger kernels gain nothing and take long to compile."""

FEW_ROWS = 64
SERIAL = 1 << 16
"""A fold to fewer rows runs on few threads; no more elements than this are drawn into such a kernel."""

SMALL = 16384
"""Below this many elements the cost of a launch counts more than that of memory."""


@dataclass(frozen=True)
class Group:
    """Loop nests that become one kernel, in program order, placed on their common domain."""

    domain: Domain
    placed: tuple[Placed, ...]

    @property
    def nodes(self) -> tuple[Loops, ...]:
        """The placed loop nests."""
        return tuple(p.node for p in self.placed)


Item = Group | Node


class Fusion:
    """Groups under construction: `members[g]` are positions of nodes in the program, `group[k]` is the reverse."""

    def __init__(self, program: LoopProgram, apart: Collection[str] = (), alone: Iterable[frozenset[str]] = ()) -> None:
        self.program = program
        self.apart = frozenset(apart)
        self.alone = [*alone]
        self.nodes = program.nodes
        self.lifetimes = Lifetimes(program)
        self.members: dict[int, list[int]] = {k: [k] for k in range(len(self.nodes))}
        self.group = list(range(len(self.nodes)))
        self.placed: dict[tuple[str, Domain], Placed | None] = {}
        self.maker: dict[str, int] = {}
        self.readers: dict[str, list[int]] = {}
        self.reads = [reads(node) for node in self.nodes]
        for k, node in enumerate(self.nodes):
            for name in self.reads[k]:
                self.readers.setdefault(name, []).append(k)
            if made(node) not in program.inputs:
                self.maker[made(node)] = k
        self.stores = stores(program)
        # What reads the memory of an input that is stored into, views included.
        self.touching: dict[str, list[int]] = {name: [] for name in self.stores}
        for k, names in enumerate(self.reads):
            for name in self._roots(names) & self.stores.keys():
                self.touching[name].append(k)
        self.before = [self._predecessors(k) for k in range(len(self.nodes))]
        # For each group, as bits, all groups that must run before it.
        self.earlier: dict[int, int] = {}
        for k, before in enumerate(self.before):
            self.earlier[k] = functools.reduce(operator.or_, (self.earlier[p] | 1 << p for p in before), 0)

    def _predecessors(self, k: int) -> set[int]:
        """Nodes that must run before node k: those it reads, what stored into an input that it reads, and readers of
        an input that it overwrites."""
        found = {self.maker[name] for name in self.reads[k] if name in self.maker}
        read = self._roots(self.reads[k])
        found |= {self.stores[name] for name in read & self.stores.keys() if self.stores[name] < k}
        if self.stores.get(made(self.nodes[k])) == k:
            found |= {r for r in self.touching[made(self.nodes[k])] if r < k}
        return found

    def _roots(self, names: Iterable[str]) -> set[str]:
        """The values in whose storage the values of these names lie, or may lie."""
        return {root for name in names for root in self.lifetimes.roots(name)}

    def segment(self, members: Iterable[int]) -> int:
        """The segment in which a group runs: that of its last member."""
        return max(self.lifetimes.segments[k] for k in members)

    # Merging

    def merge(self, a: int, b: int) -> bool:
        """Make one group of two, if that is allowed and good."""
        if a == b:
            return False
        joined = sorted(self.members[a] + self.members[b])
        nodes = [n for n in (self.nodes[k] for k in joined) if isinstance(n, Loops)]
        if len(nodes) != len(joined) or not self._keeps_time(joined) or self._reads_a_store(joined):
            return False
        if self._is_reached(a, b) or self._is_reached(b, a):
            return False
        read = {name for k in joined for name in self.reads[k]}
        own = {made(node) for node in nodes}
        if not self.apart.isdisjoint(own & read) or any(half & own and not own <= half for half in self.alone):
            return False
        names = own | read
        if len(joined) > MOST_NODES or len(names) > MOST_BUFFERS or not self._fits(nodes):
            return False
        self.members[a] = joined
        del self.members[b]
        for k in joined:
            self.group[k] = a
        self._join_earlier(a, b)
        return True

    def _join_earlier(self, a: int, b: int) -> None:
        both = 1 << a | 1 << b
        found = self.earlier[a] = (self.earlier[a] | self.earlier.pop(b)) & ~both
        for g, earlier in self.earlier.items():
            if earlier & both:
                self.earlier[g] = earlier & ~both | 1 << a | found

    def _fits(self, nodes: list[Loops]) -> bool:
        if len({n.out.device for n in nodes}) > 1:
            return False
        domain = domain_of(nodes)
        placed = place_all(nodes, domain, self._place) if size(domain.axes) else None
        if placed is None or not self._keeps_input_stores(placed, domain):
            return False
        if domain.columns and hint(size(domain.rows)) < FEW_ROWS and hint(size(domain.axes)) > SERIAL:
            return all(p.is_row or p.node.combine is not None for p in placed)
        return True

    def _place(self, node: Loops, domain: Domain) -> Placed | None:
        """Each attempt to merge asks this of all nodes of two groups."""
        key = made(node), domain
        if key not in self.placed:
            self.placed[key] = place(node, domain)
        return self.placed[key]

    def _keeps_input_stores(self, placed: list[Placed], domain: Domain) -> bool:
        """A kernel that overwrites an input reads it at the place it writes, or not at all."""
        for p in placed:
            if p.node.out.name in self.program.inputs:
                name = p.node.out.name
                found = [load for q in placed for load in loads(q.node.body)]
                old = [load for load in found if name in self.lifetimes.roots(load.buffer)]
                as_views = any(load.buffer != name for load in old)  # which show other places
                if old and (domain.columns or as_views or any(load.index != p.node.index for load in old)):
                    return False
        return True

    def _reads_a_store(self, joined: list[int]) -> bool:
        """Whether one of these nodes reads an input behind the store of another: a kernel knows old values only."""
        stored = {name: k for name, k in self.stores.items() if k in joined}
        return any(r in joined and r > k for name, k in stored.items() for r in self.touching[name])

    def _keeps_time(self, joined: list[int]) -> bool:
        """No read moves to where it keeps memory alive, and no reader outside comes too early."""
        segment = self.segment(joined)
        inside = set(joined)
        for k in joined:
            node = self.nodes[k]
            for name in self.reads[k]:
                allowed = self.lifetimes.may_read_later(name, self.lifetimes.segments[k], segment)
                if self.maker.get(name) not in inside and not allowed:
                    return False
            for r in self.readers.get(made(node), ()):
                if r > k and r not in inside and self.segment(self.members[self.group[r]]) < segment:
                    return False
        return True

    def _is_reached(self, source: int, target: int) -> bool:
        """Whether `target` depends on `source` through a third group."""
        return any(self.earlier[g] >> source & 1 for g in self._groups_before(target))

    def _groups_before(self, g: int) -> set[int]:
        return {self.group[p] for k in self.members[g] for p in self.before[k]} - {g}

    # What is tried, in which order

    def run(self) -> None:
        """Join producers with readers first, then readers of the same memory."""
        for k, node in enumerate(self.nodes):
            if isinstance(node, Loops):
                for p in sorted(self.before[k], reverse=True):
                    self.merge(self.group[p], self.group[k])
        for _, readers in sorted(self.readers.items(), key=lambda item: item[1]):
            self._join_neighbours(readers)
        small = [k for k, n in enumerate(self.nodes) if isinstance(n, Loops) and hint(size(n.axes)) < SMALL]
        self._join_neighbours(small)

    def _join_neighbours(self, positions: list[int]) -> None:
        loops = [k for k in positions if isinstance(self.nodes[k], Loops)]
        for a, b in itertools.pairwise(loops):
            same = self.segment(self.members[self.group[a]]) == self.segment(self.members[self.group[b]])
            if same:
                self.merge(self.group[a], self.group[b])

    def _is_only_returned(self, node: Node) -> bool:
        """Whether a node is a view that nobody reads, of memory that is made here and not written to later. It comes
        as soon as it can, and so is handed over as soon as it can be."""
        if not isinstance(node, Extern) or not node.is_view or node.out in self.readers:
            return False
        owners = self.lifetimes.roots(node.out)
        return not any(root in self.program.inputs or root in self.lifetimes.writes for root in owners)

    def ordered(self) -> list[Item]:
        """Groups, externs and views in an order that respects every dependency and the order of extern calls."""

        def key(g: int) -> tuple[int, bool, int]:
            last = self.members[g][-1]
            node = self.nodes[last]
            if self._is_only_returned(node):
                return -1, False, last
            return self.segment(self.members[g]), isinstance(node, Extern) and not node.is_view, last

        waiting = {g: self._groups_before(g) for g in self.members}
        after: dict[int, list[int]] = {}
        for g, before in waiting.items():
            for p in before:
                after.setdefault(p, []).append(g)
        ready = [(key(g), g) for g, before in waiting.items() if not before]
        heapq.heapify(ready)
        result: list[Item] = []
        while ready:
            _, g = heapq.heappop(ready)
            result.append(self._item(g))
            for later in after.get(g, ()):
                waiting[later].discard(g)
                if not waiting[later]:
                    heapq.heappush(ready, (key(later), later))
        return result

    def _item(self, g: int) -> Item:
        first = self.nodes[self.members[g][0]]
        if not isinstance(first, Loops):
            return first
        nodes = [n for n in (self.nodes[k] for k in self.members[g]) if isinstance(n, Loops)]
        domain = domain_of(nodes)
        placed = place_all(nodes, domain, self._place)
        assert placed is not None
        return Group(domain, tuple(placed))


def fuse(
    program: LoopProgram,
    *,
    join: bool = True,
    apart: Collection[str] = (),
    alone: Iterable[frozenset[str]] = (),
) -> list[Item]:
    """The schedule of a program: kernels-to-be and extern calls in order. `join=False` keeps one nest per kernel; what
    is `apart` is read by other kernels than the one that makes it; what is `alone` is made with nothing else."""
    fusion = Fusion(program, apart, alone)
    if join:
        fusion.run()
    return fusion.ordered()
