"""Owns which results of a forward graph that runs operation by operation are computed later than in its order.

`autograd/partition/partition.py` computes early what backward alone needs, so that what it is computed from can die.
Where something else reads that later anyway, nothing would die: the result would only take memory while its reader
runs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.functional.written_inputs import lies_in_arguments, memory_of
from minidynamo.autograd.graph.inplace_variants import in_place
from minidynamo.autograd.graph.recomputation import is_random
from minidynamo.autograd.partition.minimum_cut import bytes_of
from minidynamo.autograd.reinplace.reuse import overwrite
from minidynamo.compat import OpOverload
from minidynamo.memory.graph_plan import graph_plan
from minidynamo.memory.plan import INSIDE, ROUNDING, MemoryPlan


def postpone(graph: fx.Graph) -> None:
    """Move pointwise results behind the last operation up to which all that they are computed from lives anyway: with
    what is computed for them alone, if the peak allows for that, or else with what can lie in the same memory."""
    levels = _Levels(graph)
    for node in graph.output_node().all_input_nodes:
        if len(node.users) == 1 and _is_movable(node):
            chain, alone = _chain(node), _computed_for(node)
            if len(alone) == len(chain) or not _move(alone, levels.allow):
                _move(chain)


def _move(group: list[fx.Node], allowed: Callable[[list[fx.Node], fx.Node], bool] = lambda group, place: True) -> bool:
    """Move nodes, given in order, as far as can be, if that place is `allowed`; whether they stand there now."""
    nodes = list(group[0].graph.nodes)
    position = {node: k for k, node in enumerate(nodes)}
    sources = {source for node in group for source in node.all_input_nodes} - {*group}
    readers = [[position[user] for user in source.users if user not in group] for source in sources]
    behind = min((max(places, default=-1) for places in readers), default=-1)
    start = position[group[0]]
    group = [node for node in group if position[node] < behind]
    if not group or any(_writes(node) for node in nodes[start + 1 : behind + 1]):
        return False
    place = nodes[behind].prev if nodes[behind].op == "output" else nodes[behind]
    while place.next.target is operator.getitem:
        place = place.next
    if place in group or not allowed(group, place):
        return place in group
    for node in group:
        place.append(node)
        place = node
    return True


class _Levels:
    """How much lives when in a graph, as it is when that is first asked: moving what is returned makes it no more."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph

    @cached_property
    def usage(self) -> dict[fx.Node, int]:
        """The bytes that are there when a node has run, if nothing is written over what it reads."""
        plan = _plan(self.graph)
        lasting = (buffer for buffer in plan.buffers if not buffer.name.startswith(INSIDE))
        usage = replace(plan, buffers=tuple(lasting)).usage()
        return dict(zip((node for node in self.graph.nodes if node.op not in ("placeholder", "output")), usage))

    @cached_property
    def peak(self) -> int:
        """The most bytes that the graph will hold."""
        made = fx.Graph()
        made.output(made.graph_copy(self.graph, {}))
        overwrite(made)
        return _plan(made).peak()

    def allow(self, group: list[fx.Node], place: fx.Node) -> bool:
        """Whether `group` may be computed behind `place` without raising the peak."""
        if place not in self.usage:
            return False
        sizes = {node: bytes_of(node.meta["val"]) for node in group}
        kept = (size for node, size in sizes.items() if not sizes.keys() >= node.users.keys())
        highest = current = self.usage[place] - sum(kept)  # which are there by then, as they stand
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


def _chain(node: fx.Node) -> list[fx.Node]:
    """A result behind what is computed for it alone and can be computed in the same memory."""
    chain = [node]
    while (source := _overwritten(chain[0])) is not None:
        chain.insert(0, source)
    return chain


def _computed_for(node: fx.Node) -> list[fx.Node]:
    """A result behind all that is computed for it alone, and can be moved, in order."""
    found, pending = {node}, [node]
    while pending:
        for source in pending.pop().all_input_nodes:
            if source not in found and found.issuperset(source.users) and _is_movable(source):
                found.add(source)
                pending.append(source)
    return sorted(found)


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
