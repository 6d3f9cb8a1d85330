"""Owns the records that say how to call a compiled graph (mutations, outputs, saved tensors, gradients), and the record
of the autograd graph that it replaces: nodes, edges, and saved tensors.

The records are data only: the stages of autograd fill them in, and `runtime/` follows them. A compiled graph is a
single autograd node, and eager has a node per operation. `NodeGraph` has the facts of eager's graph that a caller can
see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch

from minidynamo.autograd.graph.layouts import WrittenLayout
from minidynamo.core.records import record
from minidynamo.memory.plan import SavedValue


@record(frozen=True)
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
    #: The targets whose tangents the gradient does not depend on, but for which eager passes zeros instead of None.
    zero_sources: tuple[int, ...] = ()
    #: Whether eager saves the target for its own gradient. Gradients of gradients flow to such targets.
    is_saved: bool = False
    #: Whether backward returns a view of the tangent.
    is_aliased: bool = False


@record(frozen=True)
class Edge:
    """An edge to an input that requires grad. Backward returns a gradient per edge."""

    #: Number of the input.
    input: int
    #: Whether there is a gradient for some tangents. Without one, autograd gets an edge only to a leaf: it would enter
    #: the history of a non-leaf.
    has_gradient: bool
    #: The targets that the gradient depends on: without their tangents the gradient is None, as in eager.
    sources: tuple[int, ...]
    #: The targets whose tangents the gradient does not depend on, but for which eager returns zeros instead of None.
    zero_sources: tuple[int, ...]
    #: The targets from which autograd reaches the input in eager.
    reached_from: tuple[int, ...]


@record(frozen=True)
class NodeGraph:
    """The autograd graph of a program. Nodes are numbered: the targets, then the views."""

    nodes: tuple[Node, ...] = ()
    #: In an order in which autograd visits the leaves as in eager.
    edges: tuple[Edge, ...] = ()
    #: One entry per saved tensor: the targets that need the tensor, () for all. Empty if all targets need all tensors.
    readers: tuple[tuple[int, ...], ...] = ()
    #: Whether the graph's node also keeps the saved tensors that only some targets need, because they are small: they
    #: live as long as any target.
    keeps_all: bool = False
    #: Per stage of backward, in order: the edges whose gradients the stage returns. Empty without stages.
    stages: tuple[tuple[int, ...], ...] = ()

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

    def names_in_stages(self, names: Sequence[str]) -> list[list[str]]:
        """Returns the names of the inputs whose gradients each stage returns, given the names of all inputs."""
        return [[names[self.edges[index].input] for index in stage] for stage in self.stages]

    @property
    def partial_positions(self) -> set[int]:
        """The positions of the targets that do not reach every input."""
        targets = enumerate(self.positions)
        return {position for target, position in targets if any(target not in edge.reached_from for edge in self.edges)}

    def all_inputs(self, number: int) -> set[int]:
        """Returns the nodes that a node is computed from, directly or not."""
        inputs: set[int] = set()
        pending = [number]
        while pending:
            new = {*self.nodes[pending.pop()].inputs} - inputs
            inputs |= new
            pending += new
        return inputs

    @property
    def frees_in_parts(self) -> bool:
        """Whether some targets stay differentiable after the backward of another target."""
        targets = self.targets
        return len(targets) > 1 and any(len(target.frees) < len(targets) for target in targets)


NO_GRAPH = NodeGraph()
"""The record of a graph without gradients."""


@record(frozen=True)
class ResultNumber:
    """A number returned by the graph: different from call to call."""

    #: Position among the results of the graph.
    position: int


@record(frozen=True)
class ViewStep:
    """A view operation without its first argument: `apply(x)` is the view of x, or an element of a list of views.

    A number among the arguments may be a `ResultNumber`; `filled` inserts the number of a call.
    """

    #: The view operation.
    op: Callable[..., Any]
    #: Positional arguments after the first.
    args: tuple[Any, ...] = ()
    #: Pairs (name, value).
    kwargs: tuple[tuple[str, Any], ...] = ()

    def apply(self, value: Any) -> Any:
        """Returns the view of `value`."""
        return self.op(value, *self.args, **dict(self.kwargs))

    @property
    def is_filled(self) -> bool:
        """True if all numbers are known before the call."""
        return not any(map(_has_result_numbers, (*self.args, *(value for _, value in self.kwargs))))

    def filled(self, results: Sequence[Any]) -> ViewStep:
        """Returns the step for one call, given the results of the graph."""
        return ViewStep(self.op, _filled(self.args, results), tuple((k, _filled(v, results)) for k, v in self.kwargs))


def _has_result_numbers(value: Any) -> bool:
    return any(map(_has_result_numbers, value)) if isinstance(value, (list, tuple)) else isinstance(value, ResultNumber)


def _filled(value: Any, results: Sequence[Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_filled(item, results) for item in value)
    return results[value.position] if isinstance(value, ResultNumber) else value


@record(frozen=True)
class OutputPlan:
    """How to make one output of the user's function, or a base of views. Without `steps` it is the origin object
    itself."""

    #: Kind of the origin.
    origin: Literal["graph", "input", "view", "constant"]
    #: "graph": position; "input": number of the input; "view": index in `GraphSignature.views`; "constant": unused.
    index: int = 0
    #: The output itself, for "constant".
    value: Any = None
    #: View operations, from the origin to the output.
    steps: tuple[ViewStep, ...] = ()
    #: Whether the view, not the base, is detached from autograd.
    detach: bool = False
    #: Whether the view was made with the grad mode off; torch records the mode in a view.
    no_grad: bool = False
    #: Torch's record of how the view was made, if it is neither usual nor `no_grad`.
    creation: str | None = None
    #: Version of the output if it is `.data` of its base; else None.
    writes: int | None = None
    #: Whether the output is a view of an input, made before the graph runs. Then autograd visits the view's node after
    #: the graph's backward, in which the view's gradient would add to the peak.
    early: bool = False


@record(frozen=True)
class InputMutation:
    """New data for one input."""

    #: Number of the input.
    index: int
    #: Position of the new data, which is copied into the input after the graph, so that autograd sees the copy; None if
    #: autograd has no part in the write.
    result: int | None
    #: Number of writes that torch counts; None for inference tensors, which have no version.
    writes: int | None = None
    #: Whether the graph itself writes the data. Then the graph does not return the result: the input is the result.
    in_place: bool = False


@record(frozen=True)
class SavedIndex:
    """Replaces saved value `index` in `Unpacked.form`; the numbers follow the tensors."""

    #: Index among saved tensors, then numbers.
    index: int


@record(frozen=True)
class Unpacked:
    """A tensor to save for which the user's pack and unpack hooks run as parts of the graphs."""

    #: Argument of the unpack hook, in which each saved value is a `SavedIndex`; without `layout` the `SavedIndex` of
    #: the tensor itself.
    form: Any
    #: Layout of the unpacked tensor; None if the tensor is saved unpacked.
    layout: WrittenLayout | None = None


@record(frozen=True)
class GraphSignature:
    """How to call a compiled graph.

    Inputs are numbered as in the flat list, in which lists are replaced by their elements. A *position* is the index of
    a result that the graph returns: first the new data of mutated inputs, then outputs.
    """

    #: One name per flat input.
    inputs: tuple[str, ...]
    #: One plan per output of the user's function.
    outputs: tuple[OutputPlan, ...]
    #: One record per mutated input.
    mutations: tuple[InputMutation, ...] = ()
    #: Number of results.
    results: int = 0
    #: The autograd graph of the program; empty for an inference graph.
    graph: NodeGraph = NO_GRAPH
    #: Pairs (position, version) of results with a version above 0.
    result_writes: tuple[tuple[int, int], ...] = ()
    #: Positions of results that are views of a tensor inside the graph only.
    internal_views: tuple[int, ...] = ()
    #: Pairs (position, eager's strides) of results that eager lays out differently, where no address depends on the
    #: strides.
    result_strides: tuple[tuple[int, tuple[int, ...]], ...] = ()
    #: Tensors of the user's code, appended to the inputs.
    constants: tuple[torch.Tensor, ...] = ()
    #: One record per saved tensor. Saved numbers have none.
    saved: tuple[SavedValue, ...] = ()
    #: Inputs from donated lists.
    donated_inputs: tuple[int, ...] = ()
    #: Positions of results that are numbers.
    number_results: tuple[int, ...] = ()
    #: Whether backward refuses to compute only some gradients.
    all_gradients: bool = False
    #: One plan per base: a tensor with several views among outputs or bases.
    views: tuple[OutputPlan, ...] = ()
    #: One record per saved tensor, if the user's hooks for saved tensors are parts of the graphs. Empty otherwise.
    unpacked: tuple[Unpacked, ...] = ()

    def origin(self, plan: OutputPlan) -> tuple[str, int]:
        """Returns the kind and index of the value that an output, or a base, is made from."""
        while plan.origin == "view":
            plan = self.views[plan.index]
        return plan.origin, plan.index

    @property
    def saved_bytes(self) -> int:
        """Bytes that live from forward to backward, inputs included."""
        return sum(value.bytes for value in self.saved)
