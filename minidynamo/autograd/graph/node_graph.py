"""Owns the record of the autograd graph that a compiled graph replaces: its nodes, edges, and saved tensors.

A compiled graph is a single autograd node, and eager has a node per operation. The record has the facts of eager's
graph that a caller can see. `autograd/build_signature.py` fills it in, `autograd/runtime/` follows it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Node:
    """A *target*, which is a differentiated result, or an output that is a view and that a target is computed from."""

    #: Position of the target among the results of the graph; None for a view.
    position: int | None = None
    #: Number of the output that is the view; None for a target.
    output: int | None = None
    #: The nodes that the target is computed from directly.
    inputs: tuple[int, ...] = ()
    #: The targets whose backward raises after the backward of this target, unless the user retains the graph.
    frees: tuple[int, ...] = ()
    #: Number of the backward graph's node that computes the total gradient; None if there is none.
    gradient: int | None = None
    #: The targets that give the node zeros whatever their tangents are.
    zero_sources: tuple[int, ...] = ()
    #: Whether eager saves the target for its own gradient. Gradients of gradients flow to such targets.
    is_saved: bool = False
    #: Whether backward returns a view of the tangent.
    is_aliased: bool = False


@dataclass(frozen=True)
class Edge:
    """An edge to an input that requires grad. Backward returns a gradient per edge."""

    #: Number of the input.
    input: int
    #: Whether there is a gradient for some tangents. Without one, autograd gets an edge only to a leaf: it would enter
    #: the history of a non-leaf.
    has_gradient: bool
    #: The targets that the gradient depends on: without their tangents the gradient is None, as in eager.
    sources: tuple[int, ...]
    #: The targets that give zeros whatever their tangents are.
    zero_sources: tuple[int, ...]
    #: The targets from which autograd reaches the input in eager.
    reached_from: tuple[int, ...]


@dataclass(frozen=True)
class NodeGraph:
    """The autograd graph of a program. Nodes are numbered: the targets, then the views."""

    nodes: tuple[Node, ...] = ()
    #: Sorted so that autograd visits leaves in eager's order.
    edges: tuple[Edge, ...] = ()
    #: One entry per saved tensor: the targets that need the tensor, () for all. Empty if all need every tensor.
    readers: tuple[tuple[int, ...], ...] = ()

    @property
    def targets(self) -> tuple[Node, ...]:
        """The nodes that backward receives a tangent for."""
        return tuple(node for node in self.nodes if node.output is None)

    @property
    def positions(self) -> tuple[int, ...]:
        """The position of each target among the results."""
        return tuple(node.position for node in self.nodes if node.position is not None)

    @property
    def inputs(self) -> tuple[int, ...]:
        """The number of the input of each edge."""
        return tuple(edge.input for edge in self.edges)

    @property
    def gradients(self) -> dict[int, int]:
        """The nodes whose total gradient backward computes, with the number of the backward graph's node."""
        return {number: node.gradient for number, node in enumerate(self.nodes) if node.gradient is not None}

    @property
    def partial_positions(self) -> set[int]:
        """The positions of the targets that do not reach every input."""
        targets = enumerate(self.positions)
        return {position for target, position in targets if any(target not in edge.reached_from for edge in self.edges)}

    def all_inputs(self, number: int) -> set[int]:
        """Returns the nodes that a node is computed from, directly or not."""
        found: set[int] = set()
        pending = [number]
        while pending:
            new = {*self.nodes[pending.pop()].inputs} - found
            found |= new
            pending += new
        return found

    @property
    def frees_in_parts(self) -> bool:
        """Whether some targets stay differentiable after the backward of another target."""
        targets = self.targets
        return len(targets) > 1 and any(len(target.frees) < len(targets) for target in targets)


NO_GRAPH = NodeGraph()
"""The record of a graph without gradients."""
