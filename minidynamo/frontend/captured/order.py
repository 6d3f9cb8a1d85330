"""Owns the order in which autograd runs the nodes of a backward.

torch captures a backward in another order. Hooks, and sums of three gradients and more, depend on the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from minidynamo import compat


def positions(names: Sequence[str], roots: Iterable[Any], requested: Iterable[Any]) -> dict[int, int]:
    """Returns the position of each node in autograd's order, by its number in torch's walk.

    `names` has the names of the nodes, `roots` the tensors at which the backward starts, and `requested` the tensors
    whose gradients it returns, none for all leaves. The walk's order stays if its nodes are not the expected ones.
    """
    graph = _Graph(list(map(_node_of, roots)), set(map(_node_of, requested)))
    walk = graph.walk()
    if len(walk) != len(names) or any(compat.name_of(node) != name for node, name in zip(walk[1:], names[1:])):
        return {number: number for number in range(len(names))}
    numbers = {node: number for number, node in enumerate(walk)}
    return {numbers[node]: position for position, node in enumerate(graph.run())}


def _node_of(tensor: Any) -> Any:
    return get_gradient_edge(tensor).node if isinstance(tensor, torch.Tensor) else tensor.node


class _Graph:
    """The nodes of a backward. None is the node before the roots."""

    def __init__(self, roots: list[Any], requested: set[Any]) -> None:
        self.edges: dict[Any, list[Any]] = {None: roots}
        pending = [*roots]
        while pending:
            node = pending.pop()
            if node not in self.edges:
                self.edges[node] = [after for after, _ in node.next_functions if after is not None]
                pending += self.edges[node]
        self.runs = self.leading_to(requested) if requested else {*self.edges}
        #: How many edges lead to each node.
        self.counts: dict[Any, int] = {}
        for edges in self.edges.values():
            for node in edges:
                self.counts[node] = self.counts.get(node, 0) + 1

    def leading_to(self, requested: set[Any]) -> set[Any]:
        """Returns the nodes from which a requested node is reached."""
        before: dict[Any, list[Any]] = {}
        for node, edges in self.edges.items():
            for after in edges:
                before.setdefault(after, []).append(node)
        found, pending = set(requested), [*requested]
        while pending:
            new = [node for node in before.get(pending.pop(), ()) if node not in found]
            found.update(new)
            pending += new
        return found

    def walk(self) -> list[Any]:
        """Returns the nodes in the order of torch's walk: the node that became ready last comes first."""
        return self.ordered([])

    def run(self) -> list[Any]:
        """Returns the nodes in the order in which autograd runs them."""
        return self.ordered(_Queue())

    def ordered(self, ready: Any) -> list[Any]:
        """Returns the nodes in the order in which `ready`, a stack or queue, returns them."""
        missing, order = dict(self.counts), []
        ready.append(None)
        while ready:
            order.append(ready.pop())
            for node in self.edges[order[-1]]:
                missing[node] -= 1
                if not missing[node] and node in self.runs:
                    ready.append(node)
        return order


class _Queue:
    """Autograd's queue of ready nodes: a heap like that of the C++ library, which also decides between equal nodes."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, Any]] = []

    def __len__(self) -> int:
        return len(self.heap)

    def append(self, node: Any) -> None:
        """Adds a node."""
        self.heap.append((0, None))
        self.rise(len(self.heap) - 1, (0 if node is None else compat.sequence_number(node), node))

    def rise(self, hole: int, value: tuple[int, Any]) -> None:
        """Stores a value at `hole`, or above it."""
        while hole and self.heap[(hole - 1) // 2][0] < value[0]:
            self.heap[hole], hole = self.heap[(hole - 1) // 2], (hole - 1) // 2
        self.heap[hole] = value

    def pop(self) -> Any:
        """Removes and returns the node with the greatest number."""
        first, value, hole, child = self.heap[0], self.heap.pop(), 0, 0
        length = len(self.heap)
        if not length:
            return first[1]
        while child < (length - 1) // 2:
            child = 2 * (child + 1)
            if self.heap[child][0] < self.heap[child - 1][0]:
                child -= 1
            self.heap[hole], hole = self.heap[child], child
        if length % 2 == 0 and child == (length - 2) // 2:
            child = 2 * child + 1
            self.heap[hole], hole = self.heap[child], child
        self.rise(hole, value)
        return first[1]
