"""Owns the order in which leaves get their gradients from a compiled graph: that of eager.

In eager each leaf gets its gradient as soon as there is one. A compiled graph is one node, behind which all leaves are
ready at once; autograd then takes them from a heap (`std::priority_queue`), in which all leaves are equal. So the order
of the node's edges decides, by how a heap takes equal elements out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from minidynamo.autograd.graph.hooks import register


def noting_arrivals(leaves: Mapping[int, torch.Tensor]) -> list[int]:
    """A list to which the number of each leaf is appended when a backward comes to it."""
    arrived: list[int] = []

    def note(number: int) -> Callable[[torch.Tensor], None]:
        return lambda _: arrived.append(number)

    for number, leaf in leaves.items():
        register(leaf.register_hook, note(number))
    return arrived


def edges(places: Sequence[int], others: Sequence[int]) -> tuple[int, ...]:
    """An order of edges such that autograd takes the leaves at `places` in that order, and then the `others`, which are
    no leaves."""
    ordered = [0] * len(places)
    for place, position in zip(places, _taken(len(places), more=bool(others))):
        ordered[position] = place
    return (*ordered, *others)


def _taken(count: int, *, more: bool) -> list[int]:
    """The order in which a heap takes `count` equal elements that were pushed one after the other; with `more`, one
    that is less was pushed last."""
    heap = [*range(count + more)]
    taken = []
    while heap:
        taken.append(heap[0])
        last = heap.pop()
        hole, child = 0, 2
        while child <= len(heap):  # the right child goes up unless there is none, or it is less
            if child == len(heap) or heap[child] == count:
                child -= 1
            heap[hole] = heap[child]
            hole, child = child, 2 * child + 2
        if heap:
            heap[hole] = last
    return taken[:count]
