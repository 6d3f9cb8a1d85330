"""Owns the records that say how to call a compiled graph: mutations, outputs, saved tensors, gradients.

They hold data only; `functionalize` and `partition` fill them in, `runtime` follows them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from minidynamo.autograd.graph.layouts import WrittenLayout
from minidynamo.autograd.graph.node_graph import NO_GRAPH, NodeGraph
from minidynamo.memory.plan import SavedValue


@dataclass(frozen=True)
class ResultNumber:
    """A number returned by the graph: different from call to call."""

    #: Position among the results of the graph.
    position: int


@dataclass(frozen=True)
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
        return not any(map(_is_open, (*self.args, *(value for _, value in self.kwargs))))

    def filled(self, results: Sequence[Any]) -> ViewStep:
        """Returns the step for one call, given the results of the graph."""
        return ViewStep(self.op, _filled(self.args, results), tuple((k, _filled(v, results)) for k, v in self.kwargs))


def _is_open(value: Any) -> bool:
    return any(map(_is_open, value)) if isinstance(value, (list, tuple)) else isinstance(value, ResultNumber)


def _filled(value: Any, results: Sequence[Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_filled(item, results) for item in value)
    return results[value.position] if isinstance(value, ResultNumber) else value


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class SavedIndex:
    """Replaces saved value `index` in `Unpacked.form`; the numbers follow the tensors."""

    #: Index among saved tensors, then numbers.
    index: int


@dataclass(frozen=True)
class Unpacked:
    """A tensor to save for which the user's pack and unpack hooks run as parts of the graphs."""

    #: Argument of the unpack hook, in which each saved value is a `SavedIndex`; without `layout` the `SavedIndex` of
    #: the tensor itself.
    form: Any
    #: Layout of the unpacked tensor; None if the tensor is saved unpacked.
    layout: WrittenLayout | None = None


@dataclass(frozen=True)
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
