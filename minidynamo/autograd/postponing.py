"""Owns which results of a forward graph that runs operation by operation are computed later than in its order.

`partition.py` computes early what backward alone needs, so that what it is computed from can die. Where something else
reads that later anyway, nothing would die: the result would only take memory while its reader runs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.recomputation import is_random
from minidynamo.autograd.twins import in_place
from minidynamo.autograd.written_inputs import lies_in_arguments, memory_of
from minidynamo.compat import OpOverload


def postpone(graph: fx.Graph) -> None:
    """Move pointwise results behind the last operation up to which all that they are computed from lives anyway."""
    nodes = list(graph.nodes)
    position = {node: k for k, node in enumerate(nodes)}
    writes = [k for k, node in enumerate(nodes) if _writes(node)]
    for chain in list(_chains(graph)):
        sources = {source for node in chain for source in node.all_input_nodes} - {*chain}
        readers = [[position[user] for user in source.users if user not in chain] for source in sources]
        behind = min((max(places, default=-1) for places in readers), default=-1)
        start, end = position[chain[0]], position[chain[-1]]
        if behind <= end or any(start < k <= behind for k in writes):
            continue
        place = nodes[behind].prev if nodes[behind].op == "output" else nodes[behind]
        while place.next.target is operator.getitem:
            place = place.next
        for node in chain if place not in chain else ():
            place.append(node)
            place = node


def _chains(graph: fx.Graph) -> Iterator[list[fx.Node]]:
    """Results that nothing else in the graph reads, each behind what is computed for it alone and can be computed in
    the same memory."""
    for node in graph.output_node().all_input_nodes:
        if len(node.users) > 1 or not _is_movable(node):
            continue
        chain = [node]
        while (source := _overwritten(chain[0])) is not None:
            chain.insert(0, source)
        yield chain


def _overwritten(node: fx.Node) -> fx.Node | None:
    """The argument that `node` may be written over, if that is computed for it alone."""
    source = node.args[0] if node.args and in_place(node) is not None else None
    if not isinstance(source, fx.Node) or len(source.users) > 1 or node.args.count(source) > 1:
        return None
    old, new = source.meta["val"], node.meta["val"]
    same = isinstance(old, torch.Tensor) and old.dtype == new.dtype and old.shape == new.shape
    return source if same and _is_movable(source) else None


def _is_movable(node: fx.Node) -> bool:
    """Whether it does not matter when `node` runs, and its result is new memory."""
    op = node.target
    if not isinstance(op, OpOverload) or torch.Tag.pointwise not in op.tags or is_random(node) or _writes(node):
        return False
    return memory_of(node) is not None and not lies_in_arguments(node)


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and compat.schema_of(node.target).is_mutable
