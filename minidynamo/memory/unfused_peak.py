"""Owns the peak of a graph without writes, run operation by operation in the order of the program.

The nodes of a decomposed torch operation run as a single operation. The peak of fused code is compared with this peak.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo.graph.decomposed import is_inside
from minidynamo.graph.marks import DIES, OUT, PART_OF, RETURNED, WRITTEN
from minidynamo.memory.graph_plan import IN_PLACE_FILLS, may_share
from minidynamo.memory.storages import storages_in

aten = torch.ops.aten

_ZEROS = frozenset((aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default))
_SCATTERS = frozenset((aten.select_scatter.default, aten.slice_scatter.default, aten.diagonal_scatter.default))
"""Operators that replace a part of a tensor; derivative formulas write to a view of zeros instead."""


def peak_of_operations(gm: fx.GraphModule, taken: bool = False, held: bool = False) -> int:
    """Returns the most bytes that the operations hold at once.

    Counts only inputs marked DIES; the caller owns the others. Results stay alive; with `taken` they die as soon as
    they are final. With `held`, results of forward do not count.
    """
    nodes = list(gm.graph.nodes)
    return _Walk(nodes, nodes[:-1] if taken else nodes, held).peak()


class _Walk:
    """Numbers the storages of a graph's values, with birth and death of each.

    `readers` are the nodes that keep their arguments alive. With `held`, results of forward do not count.
    """

    def __init__(self, nodes: Sequence[fx.Node], readers: Sequence[fx.Node], held: bool) -> None:
        self.nodes = nodes
        self.held = held
        ends = {node.meta[PART_OF]: step for step, node in enumerate(nodes) if PART_OF in node.meta}
        self.last: dict[fx.Node, int] = {}  # node -> position of its last reader
        self.call_end: dict[fx.Node, int] = {}  # node -> last position of the reading calls
        for step, reader in enumerate(readers):
            for node in reader.all_input_nodes:
                self.last[node] = step
                self.call_end[node] = max(self.call_end.get(node, 0), ends.get(reader.meta.get(PART_OF), step))
        self.memory_of: dict[fx.Node, list[int]] = {}  # node -> the memory of each of its results
        self.storages: dict[object, int] = {}
        self.born: dict[int, tuple[int, int]] = {}  # memory -> (position, bytes)
        self.local: set[int] = set()  # memory without uses outside of a single call, so far
        self.read: dict[int, int] = {}
        self.dies: dict[int, int] = {}
        for step, node in enumerate(nodes):
            self.visit(step, node)

    def visit(self, step: int, node: fx.Node) -> None:
        self.memory_of[node] = []
        for position, storage, nbytes in _results(node):
            known = self.written(node, position) or self.filled(node, step)
            known = known or ([self.storages[storage]] if may_share(node) and storage in self.storages else [])
            memory = known[0] if known else len(self.read)
            self.storages[storage] = memory
            self.memory_of[node].append(memory)
            self.read[memory] = max(self.read.get(memory, 0), self.last.get(node, step))
            self.dies[memory] = max(self.dies.get(memory, 0), self.call_end.get(node, step))
            if is_inside(node):
                self.local.update([] if known else [memory])
            elif memory in self.local or (not known and self.counts(node)):
                self.local.discard(memory)
                self.born[memory] = step, nbytes

    def counts(self, node: fx.Node) -> bool:
        """Returns whether new memory for a node dies after its last use."""
        if node.op != "placeholder":
            return True
        return DIES in node.meta and not (self.held and RETURNED in node.meta)

    def peak(self) -> int:
        changes = [0] * (len(self.nodes) + 1)
        for memory, (step, nbytes) in self.born.items():
            changes[step] += nbytes
            changes[min(self.dies[memory] + 1, len(self.nodes))] -= nbytes
        return max(itertools.accumulate(changes[:-1]), default=0)

    def written(self, node: fx.Node, position: int) -> list[int]:
        """Returns the memory that the program has written a result to.

        It is the memory of an argument, or of a tensor that contains the result. Returns [] for a result in memory of
        its own.
        """
        argument = node.meta.get(WRITTEN, {}).get(position)
        source: Any = node.args[argument] if argument is not None and argument < len(node.args) else None
        if isinstance(source, (list, tuple)):
            source = source[position]
        if OUT in node.meta and node.users:
            user = next(iter(node.users))
            source = user.args[0] if WRITTEN in user.meta or user.target is torch.ops.aten.copy_.default else None
        found = self.memory_of.get(source, []) if isinstance(source, fx.Node) else []
        return found if len(found) == 1 else []

    def filled(self, node: fx.Node, step: int) -> list[int]:
        """Returns the memory that an operator fills in place, as derivative formulas do with zeros, if it has no other
        reader."""
        source = node.args[0] if node.target in IN_PLACE_FILLS or node.target in _SCATTERS else None
        if node.target in _SCATTERS and getattr(source, "target", None) not in _ZEROS:  # a program copies these
            source = None
        found = self.memory_of.get(source, []) if isinstance(source, fx.Node) and source.op != "placeholder" else []
        return [memory for memory in found if self.read[memory] == step]


def _results(node: fx.Node) -> Iterator[tuple[int, object, int]]:
    """Yields position, storage and bytes of each tensor among the results of a node.

    Skips lists of tensors: a fused optimizer has written to them.
    """
    value = node.meta.get("val")
    for position, result in enumerate(value if isinstance(value, (list, tuple)) else (value,)):
        if not isinstance(result, (list, tuple)):
            yield from ((position, storage, nbytes) for storage, nbytes in storages_in(result))
