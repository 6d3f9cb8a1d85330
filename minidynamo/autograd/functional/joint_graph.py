"""Owns the joint graph as input of the partitioner: the inputs and results of forward and backward, and dependencies.

`autograd/trace/joint.py` traces the graph, `autograd/partition/partition.py` splits it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property

import torch
from torch import fx

from minidynamo.autograd.functional.storage_resize import UNCHANGED, StorageSizes
from minidynamo.autograd.functional.written_inputs import InputWrite, last_writes
from minidynamo.autograd.graph.recomputation import is_random, uses_generator
from minidynamo.compat import OpOverload
from minidynamo.core.records import record
from minidynamo.graph.marks import USERS_BACKWARD


@record(frozen=True, kw_only=True)
class Forward:
    """The forward half of a functional graph."""

    #: The whole functional graph, with the nodes of backward.
    graph: fx.Graph
    #: The placeholders of forward.
    inputs: Sequence[fx.Node]
    #: The values that forward returns to the runtime.
    results: Sequence[fx.Node]
    #: New data for inputs, in program order.
    writes: Sequence[InputWrite] = ()
    #: Inputs with changed data at the end of forward; inputs without memory at the end are in `sizes`.
    overwritten: frozenset[fx.Node] = frozenset()
    sizes: StorageSizes = UNCHANGED

    @cached_property
    def backward_only(self) -> set[fx.Node]:
        """The nodes that only backward can compute."""
        return tangent_dependent(self.graph, set(self.inputs))

    @cached_property
    def roots(self) -> list[fx.Node]:
        """The nodes that forward runs for: results, new data of inputs, and effects."""
        effects = (node for node in self.graph.nodes if is_effect(node) and node not in self.backward_only)
        return [*self.results, *(write.new for write in last_writes(self.writes)), *effects]


@record(frozen=True, kw_only=True)
class Joint:
    """A joint graph: the forward half, the tangents as inputs of backward, and the gradients as results of backward."""

    forward: Forward
    #: One per differentiable result.
    tangents: Sequence[fx.Node]
    #: One per input that requires grad; None where no gradient reaches the input.
    gradients: Sequence[fx.Node | None]
    #: Inputs, results and new data of inputs that the caller may write to before backward runs.
    writable_by_caller: Collection[fx.Node] = ()
    #: Values that derivatives of the gradients read; backward must be able to compute them.
    read_by_derivatives: Collection[fx.Node] = ()
    #: Positions of results that `writes` store in inputs; forward does not return these results.
    results_in_inputs: Collection[int | None] = ()
    #: Values that eager saves. If backward needs such a value, it is saved even if an alternative is cheaper.
    saved_by_eager: frozenset[fx.Node] = frozenset()

    @cached_property
    def needed(self) -> set[fx.Node]:
        """The nodes that the gradients depend on."""
        return ancestors(node for node in self.gradients if node is not None)


def _all_inputs(node: fx.Node) -> Iterable[fx.Node]:
    return node.all_input_nodes


def ancestors(roots: Iterable[fx.Node], sources: Callable[[fx.Node], Iterable[fx.Node]] = _all_inputs) -> set[fx.Node]:
    """Returns `roots` and all their direct and indirect dependencies; `sources` returns the direct dependencies of a
    node."""
    nodes: set[fx.Node] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node not in nodes:
            nodes.add(node)
            pending += sources(node)
    return nodes


def marked_ancestors(graph: fx.Graph, marked: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """Maps each node that is marked or depends on `marked` nodes to the positions of these nodes, as bits."""
    masks = {node: 1 << position for position, node in enumerate(marked)}
    for node in graph.nodes:
        mask = masks.get(node, 0)
        for source in node.all_input_nodes:
            mask |= masks.get(source, 0)
        if mask:
            masks[node] = mask
    return masks


def is_effect(node: fx.Node) -> bool:
    """Returns whether `node` must run in forward even without users: it draws random numbers or checks a value."""
    if node.op != "call_function":
        return False
    returns_nothing = isinstance(node.target, OpOverload) and node.meta.get("val") is None
    return uses_generator(node) or returns_nothing


def producer_of(node: fx.Node) -> fx.Node:
    """Returns the operation that computed `node`: the node itself, unless it is an element of several results."""
    source = node.args[0] if node.target is operator.getitem else None
    several = isinstance(source, fx.Node) and not isinstance(source.meta.get("val"), torch.Tensor)
    return source if several and isinstance(source, fx.Node) else node


def tangent_dependent(graph: fx.Graph, inputs: set[fx.Node]) -> set[fx.Node]:
    """Returns the placeholders outside of `inputs`, the nodes that depend on these, and the draws of the user's
    backward."""
    backward_only: set[fx.Node] = set()
    for node in graph.nodes:
        is_tangent = node.op == "placeholder" and node not in inputs
        is_users_draw = USERS_BACKWARD in node.meta and is_random(node)
        if is_tangent or is_users_draw or not backward_only.isdisjoint(node.all_input_nodes):
            backward_only.add(node)
    return backward_only
