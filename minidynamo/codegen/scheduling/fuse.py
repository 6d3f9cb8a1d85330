"""Owns the second step of fusion: which loop nests share a kernel, and the order of kernels and extern calls.

A merge never extends a lifetime, never lets a read cross a write, and never creates a dependency cycle. Results are
deterministic.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import operator
from collections.abc import Collection, Iterable

from minidynamo.codegen.ir.loops import Extern, LoopProgram, Loops, Node
from minidynamo.codegen.ir.size import hint
from minidynamo.codegen.scheduling.domain import Domain, Placed, domain_of, place, place_all, size
from minidynamo.codegen.scheduling.lifetimes import Lifetimes, defines, readers_of, reads, stores
from minidynamo.core.records import record

MOST_NODES = 64
MOST_BUFFERS = 40
"""Limits on the nodes and buffers of a kernel: larger kernels gain nothing and compile slowly."""

FEW_ROWS = 64
SERIAL = 1 << 16
"""A fold to fewer than FEW_ROWS rows runs on few threads, so its kernel computes at most SERIAL elements in
addition."""

SMALL = {"cpp": 1 << 14, "triton": 1 << 21}
"""Below this number of elements a launch costs more than the memory traffic."""


@record(frozen=True)
class Group:
    """Loop nests that become one kernel, in program order, written over their common domain."""

    #: The iteration space of the kernel.
    domain: Domain
    #: The loop nests, in program order.
    placed: tuple[Placed, ...]

    @property
    def nodes(self) -> tuple[Loops, ...]:
        """Returns the placed loop nests."""
        return tuple(p.node for p in self.placed)


Item = Group | Node


class Fusion:
    """Groups under construction.

    `members[g]` has the positions in the program of the nodes of group g; `group[k]` is the group of the node at
    position k.
    """

    def __init__(
        self, program: LoopProgram, materialized: Collection[str] = (), exclusive: Iterable[frozenset[str]] = ()
    ) -> None:
        self.program = program
        self.materialized = frozenset(materialized)
        self.exclusive = [*exclusive]
        self.nodes = program.nodes
        self.lifetimes = Lifetimes(program)
        self.members: dict[int, list[int]] = {k: [k] for k in range(len(self.nodes))}
        self.group = list(range(len(self.nodes)))
        self.placed: dict[tuple[str, Domain], Placed | None] = {}
        self.producers: dict[str, int] = {}
        self.readers = readers_of(program)
        self.reads = [reads(node) for node in self.nodes]
        for k, node in enumerate(self.nodes):
            if defines(node) not in program.inputs:
                self.producers[defines(node)] = k
        self.stores = stores(program)
        # Readers of the memory of an input that a loop nest overwrites; readers of its views too.
        self.input_readers: dict[str, list[int]] = {name: [] for name in self.stores}
        for k, names in enumerate(self.reads):
            for name in self._roots(names) & self.stores.keys():
                self.input_readers[name].append(k)
        self.predecessors = [self._predecessors(k) for k in range(len(self.nodes))]
        # Group -> bit set of the groups that must run earlier.
        self.ancestors: dict[int, int] = {}
        for k, predecessors in enumerate(self.predecessors):
            self.ancestors[k] = functools.reduce(operator.or_, (self.ancestors[p] | 1 << p for p in predecessors), 0)

    def _predecessors(self, k: int) -> set[int]:
        """Returns the nodes that must run before node k:

        - the definitions of its operands;
        - stores into an input, if it reads the input after the store;
        - readers of an input, if it overwrites the input.
        """
        predecessors = {self.producers[name] for name in self.reads[k] if name in self.producers}
        read = self._roots(self.reads[k])
        predecessors |= {self.stores[name] for name in read & self.stores.keys() if self.stores[name] < k}
        if self.stores.get(defines(self.nodes[k])) == k:
            predecessors |= {r for r in self.input_readers[defines(self.nodes[k])] if r < k}
        return predecessors

    def _roots(self, names: Iterable[str]) -> set[str]:
        """Returns the values that own, or may own, the storage of the named values."""
        return {root for name in names for root in self.lifetimes.roots(name)}

    def segment(self, members: Iterable[int]) -> int:
        """Returns the segment in which a group runs: the segment of its last member."""
        return max(self.lifetimes.segments[k] for k in members)

    # Merging

    def merge(self, a: int, b: int) -> bool:
        """Merges two groups, if this is allowed and pays off; returns whether it did."""
        if a == b:
            return False
        joined = sorted(self.members[a] + self.members[b])
        nodes = [n for n in (self.nodes[k] for k in joined) if isinstance(n, Loops)]
        if len(nodes) != len(joined) or not self._respects_lifetimes(joined) or self._reads_after_store(joined):
            return False
        if self._has_indirect_path(a, b) or self._has_indirect_path(b, a):
            return False
        read = {name for k in joined for name in self.reads[k]}
        computed = {defines(node) for node in nodes}
        if not self.materialized.isdisjoint(computed & read) or any(
            half & computed and not computed <= half for half in self.exclusive
        ):
            return False
        names = computed | read
        if len(joined) > MOST_NODES or len(names) > MOST_BUFFERS or not self._fits(nodes):
            return False
        self.members[a] = joined
        del self.members[b]
        for k in joined:
            self.group[k] = a
        self._merge_ancestors(a, b)
        return True

    def _merge_ancestors(self, a: int, b: int) -> None:
        both = 1 << a | 1 << b
        merged = self.ancestors[a] = (self.ancestors[a] | self.ancestors.pop(b)) & ~both
        for g, ancestors in self.ancestors.items():
            if ancestors & both:
                self.ancestors[g] = ancestors & ~both | 1 << a | merged

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
        """Caches `place`: each attempt to merge places all nodes of two groups."""
        key = defines(node), domain
        if key not in self.placed:
            self.placed[key] = place(node, domain)
        return self.placed[key]

    def _keeps_input_stores(self, placed: list[Placed], domain: Domain) -> bool:
        """Returns whether a kernel that overwrites an input reads the input at the written element only, or not at
        all."""
        for p in placed:
            if p.name in self.program.inputs:
                name = p.name
                loads = [load for q in placed for load in q.node.body.loads]
                old_loads = [load for load in loads if name in self.lifetimes.roots(load.buffer)]
                as_views = any(load.buffer != name for load in old_loads)  # views show the storage at other offsets
                if old_loads and (domain.columns or as_views or any(load.index != p.node.index for load in old_loads)):
                    return False
        return True

    def _reads_after_store(self, joined: list[int]) -> bool:
        """Returns whether a node reads an input after the store of another of the nodes: a kernel reads old values
        only."""
        stored = {name: k for name, k in self.stores.items() if k in joined}
        return any(r in joined and r > k for name, k in stored.items() for r in self.input_readers[name])

    def _respects_lifetimes(self, joined: list[int]) -> bool:
        """Returns whether no moved read keeps memory alive, and no reader outside the group runs before it."""
        segment = self.segment(joined)
        inside = set(joined)
        for k in joined:
            node = self.nodes[k]
            for name in self.reads[k]:
                allowed = self.lifetimes.may_read_later(name, self.lifetimes.segments[k], segment)
                if self.producers.get(name) not in inside and not allowed:
                    return False
            for r in self.readers.get(defines(node), ()):
                if r > k and r not in inside and self.segment(self.members[self.group[r]]) < segment:
                    return False
        return True

    def _has_indirect_path(self, source: int, target: int) -> bool:
        """Returns whether `target` depends on `source` through a third group."""
        return any(self.ancestors[g] >> source & 1 for g in self._groups_before(target))

    def _groups_before(self, g: int) -> set[int]:
        return {self.group[p] for k in self.members[g] for p in self.predecessors[k]} - {g}

    # The order of the attempts to merge

    def run(self) -> None:
        """Joins producers with readers first, then readers of the same memory."""
        for k, node in enumerate(self.nodes):
            if isinstance(node, Loops):
                for p in sorted(self.predecessors[k], reverse=True):
                    self.merge(self.group[p], self.group[k])
        for _, readers in sorted(self.readers.items(), key=lambda item: item[1]):
            self._join_neighbours(readers)
        largest = SMALL.get(self.program.target, 0)
        small = [k for k, n in enumerate(self.nodes) if isinstance(n, Loops) and hint(size(n.axes)) < largest]
        self._join_neighbours(small)

    def _join_neighbours(self, positions: list[int]) -> None:
        loops = [k for k in positions if isinstance(self.nodes[k], Loops)]
        for a, b in itertools.pairwise(loops):
            in_one_segment = self.segment(self.members[self.group[a]]) == self.segment(self.members[self.group[b]])
            if in_one_segment:
                self.merge(self.group[a], self.group[b])

    def _is_only_returned(self, node: Node) -> bool:
        """Returns whether a node is a view without readers, of memory that is created here and not written later.

        The schedule runs the view as early as possible, so that it is handed over as early as possible.
        """
        if not isinstance(node, Extern) or not node.is_view or node.out in self.readers:
            return False
        owners = self.lifetimes.roots(node.out)
        return not any(root in self.program.inputs or root in self.lifetimes.writes for root in owners)

    def ordered(self) -> list[Item]:
        """Returns groups, extern calls and views in an order that respects all dependencies and the order of extern
        calls."""

        def key(g: int) -> tuple[int, bool, int]:
            last = self.members[g][-1]
            node = self.nodes[last]
            if self._is_only_returned(node):
                return -1, False, last
            return self.segment(self.members[g]), isinstance(node, Extern) and not node.is_view, last

        missing = {g: self._groups_before(g) for g in self.members}
        dependents: dict[int, list[int]] = {}
        for g, predecessors in missing.items():
            for p in predecessors:
                dependents.setdefault(p, []).append(g)
        ready = [(key(g), g) for g, predecessors in missing.items() if not predecessors]
        heapq.heapify(ready)
        result: list[Item] = []
        while ready:
            _, g = heapq.heappop(ready)
            result.append(self._item(g))
            for dependent in dependents.get(g, ()):
                missing[dependent].discard(g)
                if not missing[dependent]:
                    heapq.heappush(ready, (key(dependent), dependent))
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
    materialized: Collection[str] = (),
    exclusive: Iterable[frozenset[str]] = (),
) -> list[Item]:
    """Returns the schedule of a program: groups of loop nests and extern calls, in order.

    With `join=False` each kernel has one loop nest. A value in `materialized` is read only by other kernels than its
    own. The values of a set in `exclusive` share a kernel with each other only.
    """
    fusion = Fusion(program, materialized, exclusive)
    if join:
        fusion.run()
    return fusion.ordered()
