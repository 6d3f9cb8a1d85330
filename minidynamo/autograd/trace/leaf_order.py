"""Owns the order in which leaves get their gradients from a compiled graph: the order of eager.

In eager each leaf gets its gradient as soon as the gradient exists. A compiled graph is a single autograd node, so all
leaves are ready at once. Autograd takes ready leaves from a heap (`std::priority_queue`) in which all leaves compare
equal. Therefore the order of the node's edges determines the order of the leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from minidynamo.autograd.graph.hooks import register


def recording_leaf_order(leaves: Mapping[int, torch.Tensor]) -> list[int]:
    """Returns a list to which each leaf's key is appended when a backward reaches the leaf."""
    arrived: list[int] = []

    def note(number: int) -> Callable[[torch.Tensor], None]:
        return lambda _: arrived.append(number)

    for number, leaf in leaves.items():
        register(leaf.register_hook, note(number))
    return arrived


def edge_order(arrived: Sequence[int], inputs: Iterable[int], is_leaf: Mapping[int, bool]) -> list[int]:
    """Returns an order of edges to `inputs` for which autograd takes the leaves in the order `arrived`, and the
    non-leaves last."""
    inputs = [*dict.fromkeys((*arrived, *inputs))]
    leaves, others = [i for i in inputs if is_leaf[i]], [i for i in inputs if not is_leaf[i]]
    ordered = [0] * len(leaves)
    for leaf, position in zip(leaves, _taken(len(leaves), more=bool(others))):
        ordered[position] = leaf
    return [*ordered, *others]


def _taken(count: int, *, more: bool) -> list[int]:
    """Returns the order in which a heap yields `count` equal elements, pushed in sequence.

    With `more`, a smaller element was pushed last.
    """
    heap = [*range(count + more)]
    taken = []
    while heap:
        taken.append(heap[0])
        last = heap.pop()
        hole, child = 0, 2
        while child <= len(heap):  # the right child moves up unless it is missing or smaller
            if child == len(heap) or heap[child] == count:
                child -= 1
            heap[hole] = heap[child]
            hole, child = child, 2 * child + 2
        if heap:
            heap[hole] = last
    return taken[:count]
