"""Owns the records that say how to call a compiled graph: mutations, outputs, saved tensors, gradients.

They hold data only; `functionalize` and `partition` fill them in, `runtime` follows them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from minidynamo.autograd.graph.layouts import WrittenLayout
from minidynamo.memory.saved import SavedValue


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
    a result that the graph returns: first the new data of mutated inputs, then outputs. A *target* is an index in
    `differentiable_results`, a *gradient* an index in `gradients`. A *watched position* is a target, or the number of
    targets plus the index of an output that is a view (see `autograd/trace/joint.py`).
    """

    #: One name per flat input.
    inputs: tuple[str, ...]
    #: One plan per output of the user's function.
    outputs: tuple[OutputPlan, ...]
    #: One record per mutated input.
    mutations: tuple[InputMutation, ...] = ()
    #: Number of results.
    results: int = 0
    #: One position per target: backward receives a gradient for each.
    differentiable_results: tuple[int, ...] = ()
    #: One input per result of backward: the inputs that require grad.
    gradients: tuple[int, ...] = ()
    #: One entry per gradient: the targets that the gradient depends on. If none of them is used, the gradient is None,
    #: as in eager.
    gradient_sources: tuple[tuple[int, ...], ...] = ()
    #: Inputs that never get a gradient. Autograd gets an edge to such an input only if the input is a leaf: autograd
    #: would enter the history of a non-leaf.
    unreached: tuple[int, ...] = ()
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
    #: Whether backward runs only once, unless the user retains the graph.
    runs_once: bool = True
    #: One entry per saved tensor: the targets that need the tensor, () for all. Empty if every tensor is needed by all
    #: targets.
    kept_for: tuple[tuple[int, ...], ...] = ()
    #: One entry per target: the targets whose backward raises after the backward of this target, unless the user
    #: retains the graph. Empty if all do.
    freed_with: tuple[tuple[int, ...], ...] = ()
    #: One entry per target: the watched positions used directly in the computation of the target. Empty without
    #: dependent targets.
    direct_inputs: tuple[tuple[int, ...], ...] = ()
    #: Pairs (watched position in `direct_inputs`, number of the backward graph's node for the total gradient).
    result_gradients: tuple[tuple[int, int], ...] = ()
    #: Targets: backward returns views of their tangents.
    aliased_tangents: tuple[int, ...] = ()
    #: Pairs (gradient, targets that give it zeros whatever the tangents are).
    zero_sources: tuple[tuple[int, tuple[int, ...]], ...] = ()
    #: The same for watched positions in `direct_inputs`.
    result_zero_sources: tuple[tuple[int, tuple[int, ...]], ...] = ()
    #: Targets that eager saves for their own gradients. Gradients of gradients flow to these results.
    saved_results: tuple[int, ...] = ()
    #: One entry per gradient: the targets from which autograd reaches the input in eager. Empty if every target reaches
    #: every input, and for several devices (autograd has a thread per device).
    reaching_results: tuple[tuple[int, ...], ...] = ()
    #: Gradients of inputs reached from no target in eager.
    unvisited: tuple[int, ...] = ()
    #: Gradients in the order of the edges of the graph's node; () for the order of `gradients`.
    edge_order: tuple[int, ...] = ()
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
    def partial_results(self) -> set[int]:
        """Positions of differentiable results that do not reach every input with grad."""
        places = enumerate(self.differentiable_results)
        return {result for place, result in places if any(place not in results for results in self.reaching_results)}

    @property
    def saved_bytes(self) -> int:
        """Bytes that live from forward to backward, inputs included."""
        return sum(value.bytes for value in self.saved)
