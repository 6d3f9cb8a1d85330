"""Owns the joint graph as the partitioner is given it: what forward and backward take and return, what depends on what.

How it is traced is in `autograd/trace/joint.py`, how it is split in `autograd/partition/partition.py`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import fx

from minidynamo.autograd.functional.storage_resize import UNCHANGED, StorageSizes
from minidynamo.autograd.functional.written_inputs import InputWrite, last_writes
from minidynamo.autograd.graph.provenance import USERS_BACKWARD
from minidynamo.autograd.graph.recomputation import is_random, uses_generator
from minidynamo.compat import OpOverload


@dataclass(frozen=True, kw_only=True)
class Forward:
    """A functional graph, and what forward computes of it: `results` for the runtime, from `inputs`, its placeholders,
    and the data that `writes` give to inputs.

    `overwritten` are inputs whose memory holds other data in the end; those that have no memory then (`sizes`) are none
    of them.
    """

    graph: fx.Graph
    inputs: Sequence[fx.Node]
    results: Sequence[fx.Node]
    writes: Sequence[InputWrite] = ()
    overwritten: frozenset[fx.Node] = frozenset()
    sizes: StorageSizes = UNCHANGED

    @cached_property
    def behind(self) -> set[fx.Node]:
        """What only backward can compute."""
        return tangent_dependent(self.graph, set(self.inputs))

    @cached_property
    def roots(self) -> list[fx.Node]:
        """What forward is run for: its results, new data of inputs, and effects."""
        effects = (node for node in self.graph.nodes if is_effect(node) and node not in self.behind)
        return [*self.results, *(write.new for write in last_writes(self.writes)), *effects]


@dataclass(frozen=True, kw_only=True)
class Joint:
    """A joint graph: what forward computes of it; backward takes `tangents` and returns `gradients`.

    `exposed` are inputs, results and new data of inputs that the caller may write to before backward runs. `also` are
    values that backward must be able to compute although it may not read them: derivatives of its results do. The
    results at the places `lying` lie in inputs that `writes` give them to: forward does not return those. What backward
    needs of `eager`, which eager keeps, is kept, whatever else could be; nothing of `anew` is.
    """

    forward: Forward
    tangents: Sequence[fx.Node]
    gradients: Sequence[fx.Node | None]
    exposed: Collection[fx.Node] = ()
    also: Collection[fx.Node] = ()
    lying: Collection[int | None] = ()
    eager: frozenset[fx.Node] = frozenset()
    anew: frozenset[fx.Node] = frozenset()

    @cached_property
    def wanted(self) -> set[fx.Node]:
        """What the gradients are computed from."""
        return ancestors(node for node in self.gradients if node is not None)


def _all_inputs(node: fx.Node) -> Iterable[fx.Node]:
    return node.all_input_nodes


def ancestors(roots: Iterable[fx.Node], sources: Callable[[fx.Node], Iterable[fx.Node]] = _all_inputs) -> set[fx.Node]:
    """`roots` and every node they are computed from; `sources` says what one node is computed from."""
    found: set[fx.Node] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += sources(node)
    return found


def places_behind(graph: fx.Graph, marked: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """For each node that is computed from some of the `marked` ones, or is one: the places of these, as bits."""
    found = {node: 1 << place for place, node in enumerate(marked)}
    for node in graph.nodes:
        places = found.get(node, 0)
        for source in node.all_input_nodes:
            places |= found.get(source, 0)
        if places:
            found[node] = places
    return found


def is_effect(node: fx.Node) -> bool:
    """Whether `node` must run in forward whoever uses it: it draws random numbers or checks something."""
    if node.op != "call_function":
        return False
    returns_nothing = isinstance(node.target, OpOverload) and node.meta.get("val") is None
    return uses_generator(node) or returns_nothing


def maker_of(node: fx.Node) -> fx.Node:
    """The operation that made `node`: itself, unless it is one of several results."""
    source = node.args[0] if node.target is operator.getitem else None
    several = isinstance(source, fx.Node) and not isinstance(source.meta.get("val"), torch.Tensor)
    return source if several and isinstance(source, fx.Node) else node


def tangent_dependent(graph: fx.Graph, inputs: set[fx.Node]) -> set[fx.Node]:
    """Placeholders that are not among `inputs`, what is computed from them, and what the user's backward draws."""
    behind: set[fx.Node] = set()
    for node in graph.nodes:
        late = node not in inputs if node.op == "placeholder" else any(i in behind for i in node.all_input_nodes)
        if late or (USERS_BACKWARD in node.meta and is_random(node)):
            behind.add(node)
    return behind
