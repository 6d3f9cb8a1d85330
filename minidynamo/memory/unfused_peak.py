"""Owns the peak that a graph without writes would have if its operations ran one by one, as the program has them.
Those that are parts of one call run as one.

What fused code needs is compared with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo.graph.decomposed import PART_OF, is_inside
from minidynamo.memory.graph_plan import FILLING, may_share
from minidynamo.memory.storages import storages_in

WRITTEN = "written"
"""Where a node notes which of its results the program has written to arguments: by their positions those of these."""

OUT = "out"
"""What nodes note whose result the program has written to `out=`."""

DIES = "dies"
"""What an input notes that dies with its last use, as what forward has kept for backward does."""

MAY_DIE = "may die"
"""What an input notes that is an argument with a history: in backward it dies with its last use if the caller has let
go of it."""

RETURNED = "returned"
"""What an input of a backward graph notes that is a result of forward: it does not die there if the caller holds it."""

aten = torch.ops.aten

_ZEROS = frozenset((aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default))
_PUTTING = frozenset((aten.select_scatter.default, aten.slice_scatter.default, aten.diagonal_scatter.default))
"""What puts something into a part of a tensor: formulas write to a view of zeros."""


def peak_of_operations(gm: fx.GraphModule, taken: bool = False, held: bool = False) -> int:
    """The most bytes that the operations hold at one time. Of the inputs those count that note that they die: of others
    it is for their owners to say. Results stay, unless they are `taken` as soon as they are final. Results of forward
    do not count where they are `held`."""
    nodes = list(gm.graph.nodes)
    return _Walk(nodes, nodes[:-1] if taken else nodes, held).peak()


class _Walk:
    """One walk over nodes, of which the `readers` keep what they read; results of forward may be `held`. Memory has a
    number."""

    def __init__(self, nodes: Sequence[fx.Node], readers: Sequence[fx.Node], held: bool) -> None:
        self.nodes = nodes
        self.held = held
        ends = {node.meta[PART_OF]: place for place, node in enumerate(nodes) if PART_OF in node.meta}
        self.last: dict[fx.Node, int] = {}  # where a node is read for the last time
        self.until: dict[fx.Node, int] = {}  # where the call is done that it is read in
        for place, reader in enumerate(readers):
            for node in reader.all_input_nodes:
                self.last[node] = place
                self.until[node] = max(self.until.get(node, 0), ends.get(reader.meta.get(PART_OF), place))
        self.memories: dict[fx.Node, list[int]] = {}  # what a node lies in
        self.storages: dict[object, int] = {}
        self.born: dict[int, tuple[int, int]] = {}  # where, and of how many bytes
        self.inside: set[int] = set()  # what nobody outside of one call has seen so far
        self.read: dict[int, int] = {}
        self.dies: dict[int, int] = {}
        for place, node in enumerate(nodes):
            self.visit(place, node)

    def visit(self, place: int, node: fx.Node) -> None:
        self.memories[node] = []
        for position, storage, nbytes in _results(node):
            known = self.written(node, position) or self.filled(node, place)
            known = known or ([self.storages[storage]] if may_share(node) and storage in self.storages else [])
            memory = known[0] if known else len(self.read)
            self.storages[storage] = memory
            self.memories[node].append(memory)
            self.read[memory] = max(self.read.get(memory, 0), self.last.get(node, place))
            self.dies[memory] = max(self.dies.get(memory, 0), self.until.get(node, place))
            if is_inside(node):
                self.inside.update([] if known else [memory])
            elif memory in self.inside or (not known and self.counts(node)):
                self.inside.discard(memory)
                self.born[memory] = place, nbytes

    def counts(self, node: fx.Node) -> bool:
        """Whether new memory that a node lies in dies behind its last use."""
        if node.op != "placeholder":
            return True
        return DIES in node.meta and not (self.held and RETURNED in node.meta)

    def peak(self) -> int:
        changes = [0] * (len(self.nodes) + 1)
        for memory, (place, nbytes) in self.born.items():
            changes[place] += nbytes
            changes[min(self.dies[memory] + 1, len(self.nodes))] -= nbytes
        return max(itertools.accumulate(changes[:-1]), default=0)

    def written(self, node: fx.Node, position: int) -> list[int]:
        """The memory that the program has written a result to: of an argument, or of the tensor of which it becomes a
        part. Nothing if it has not, or made that memory for it."""
        place = node.meta.get(WRITTEN, {}).get(position)
        source: Any = node.args[place] if place is not None and place < len(node.args) else None
        if isinstance(source, (list, tuple)):
            source = source[position]
        if OUT in node.meta and node.users:
            user = next(iter(node.users))
            source = user.args[0] if WRITTEN in user.meta or user.target is torch.ops.aten.copy_.default else None
        found = self.memories.get(source, []) if isinstance(source, fx.Node) else []
        return found if len(found) == 1 else []

    def filled(self, node: fx.Node, place: int) -> list[int]:
        """The memory of what an operator puts something into, as formulas do with zeros, if nobody else needs that."""
        source = node.args[0] if node.target in FILLING or node.target in _PUTTING else None
        if node.target in _PUTTING and getattr(source, "target", None) not in _ZEROS:  # which a program copies
            source = None
        found = self.memories.get(source, []) if isinstance(source, fx.Node) and source.op != "placeholder" else []
        return [memory for memory in found if self.read[memory] == place]


def _results(node: fx.Node) -> Iterator[tuple[int, object, int]]:
    """Position, storage and bytes of each tensor among the results of a node. Lists of tensors among them are left out:
    they are what a fused optimizer has written to."""
    value = node.meta.get("val")
    for position, result in enumerate(value if isinstance(value, (list, tuple)) else (value,)):
        if not isinstance(result, (list, tuple)):
            yield from ((position, storage, nbytes) for storage, nbytes in storages_in(result))
