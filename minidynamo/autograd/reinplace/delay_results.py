"""Owns delayed results: operations moved to a later point of a forward graph, for graphs run operation by operation.

`autograd/partition/partition.py` computes values for backward early, to free the arguments. If a later operation reads
the arguments anyway, nothing dies: the result would only occupy memory while that operation runs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.functional.written_inputs import may_alias_arguments, memory_of
from minidynamo.autograd.graph.inplace_variants import in_place
from minidynamo.autograd.graph.recomputation import is_random
from minidynamo.autograd.partition.minimum_cut import bytes_of
from minidynamo.autograd.reinplace.reuse import reinplace_graph
from minidynamo.compat import OpOverload
from minidynamo.memory.graph_plan import graph_plan
from minidynamo.memory.plan import ROUNDING, WORKSPACE_PREFIX, MemoryPlan


def postpone(graph: fx.Graph) -> None:
    """Moves each pointwise result to the last point of the graph where all its arguments are alive anyway.

    If the peak does not rise, all nodes that are computed only for the result move with it; otherwise only the nodes
    that the result can be computed over in place.
    """
    levels = _MemoryUse(graph)
    for node in graph.output_node().all_input_nodes:
        if len(node.users) == 1 and _is_movable(node):
            chain, alone = _reusing_chain(node), _computed_only_for(node)
            if len(alone) == len(chain) or not _move(alone, levels.allow):
                _move(chain)


def _move(group: list[fx.Node], allowed: Callable[[list[fx.Node], fx.Node], bool] = lambda group, point: True) -> bool:
    """Moves the nodes of `group`, given in graph order, to the last point where the other arguments are alive, if
    `allowed(group, point)`; returns whether the nodes are there now."""
    nodes = list(group[0].graph.nodes)
    position = {node: k for k, node in enumerate(nodes)}
    sources = {source for node in group for source in node.all_input_nodes} - {*group}
    readers = [[position[user] for user in source.users if user not in group] for source in sources]
    after = min((max(places, default=-1) for places in readers), default=-1)
    start = position[group[0]]
    group = [node for node in group if position[node] < after]
    if not group or any(_writes(node) for node in nodes[start + 1 : after + 1]):
        return False
    point = nodes[after].prev if nodes[after].op == "output" else nodes[after]
    while point.next.target is operator.getitem:
        point = point.next
    if point in group or not allowed(group, point):
        return point in group
    for node in group:
        point.append(node)
        point = node
    return True


class _MemoryUse:
    """Memory use of a graph at its first query; moving returned values does not increase it."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph

    @cached_property
    def usage(self) -> dict[fx.Node, int]:
        """Living bytes after each node, if no node writes over arguments."""
        plan = _plan(self.graph)
        lasting = (buffer for buffer in plan.buffers if not buffer.name.startswith(WORKSPACE_PREFIX))
        usage = replace(plan, buffers=tuple(lasting)).usage()
        return dict(zip((node for node in self.graph.nodes if node.op not in ("placeholder", "output")), usage))

    @cached_property
    def peak(self) -> int:
        """Highest number of bytes that the graph will hold."""
        copy = fx.Graph()
        copy.output(copy.graph_copy(self.graph, {}))
        reinplace_graph(copy)
        return _plan(copy).peak()

    def allow(self, group: list[fx.Node], point: fx.Node) -> bool:
        """Returns whether `group` may be computed after `point` without raising the peak."""
        if point not in self.usage:
            return False
        sizes = {node: bytes_of(node.meta["val"]) for node in group}
        kept = (size for node, size in sizes.items() if not sizes.keys() >= node.users.keys())
        highest = current = self.usage[point] - sum(kept)  # alive at that point already
        unread = {node: len(node.users) for node in group}
        for node in group:
            taken = _overwritten(node)
            current += sizes[node]
            highest = max(highest, current - (0 if taken is None else sizes.get(taken, 0)))
            for source in node.all_input_nodes:
                if source in unread:
                    unread[source] -= 1
                    current -= 0 if unread[source] else sizes[source]
        return highest <= self.peak + ROUNDING


def _plan(graph: fx.Graph) -> MemoryPlan:
    return graph_plan(compat.graph_module(torch.nn.Module(), graph), "forward")


def _reusing_chain(node: fx.Node) -> list[fx.Node]:
    """Returns a result, after the nodes that serve it alone and can be computed in its memory."""
    chain = [node]
    while (source := _overwritten(chain[0])) is not None:
        chain.insert(0, source)
    return chain


def _computed_only_for(node: fx.Node) -> list[fx.Node]:
    """Returns, in order, a result and all movable nodes that serve it alone."""
    found, pending = {node}, [node]
    while pending:
        for source in pending.pop().all_input_nodes:
            if source not in found and found.issuperset(source.users) and _is_movable(source):
                found.add(source)
                pending.append(source)
    return sorted(found)


def _overwritten(node: fx.Node) -> fx.Node | None:
    """Returns the argument that `node` may write over, if the argument serves `node` alone."""
    source = node.args[0] if node.args and in_place(node) is not None else None
    if not isinstance(source, fx.Node) or len(source.users) > 1 or node.args.count(source) > 1:
        return None
    old, new = source.meta["val"], node.meta["val"]
    same = isinstance(old, torch.Tensor) and old.dtype == new.dtype and old.shape == new.shape
    return source if same and _is_movable(source) else None


def _is_movable(node: fx.Node) -> bool:
    """Returns whether `node` may run at any time, and its result is new memory."""
    op = node.target
    if not isinstance(op, OpOverload) or torch.Tag.pointwise not in op.tags or is_random(node) or _writes(node):
        return False
    return memory_of(node) is not None and not may_alias_arguments(node)


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and compat.schema_of(node.target).is_mutable
