"""Owns the records that say how to call a compiled graph: what it mutates, what its outputs are, what it saves.

It holds data only; `functionalize` and `partition` fill the records in, `runtime` follows them.
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
    """A number that differs from call to call: the one that the compiled graph returned at `position`."""

    position: int


@dataclass(frozen=True)
class ViewStep:
    """One view operation without its first argument: `apply(x)` is the view of x, or an element of a list of views.

    A number among the arguments may be a `ResultNumber`; `filled` puts those of one call in their places.
    """

    op: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()

    def apply(self, value: Any) -> Any:
        """The view of `value`."""
        return self.op(value, *self.args, **dict(self.kwargs))

    @property
    def is_filled(self) -> bool:
        """Whether every number is known."""
        return not any(map(_is_open, (*self.args, *(value for _, value in self.kwargs))))

    def filled(self, results: Sequence[Any]) -> ViewStep:
        """The step for one call, by what the compiled graph returned."""
        return ViewStep(self.op, _filled(self.args, results), tuple((k, _filled(v, results)) for k, v in self.kwargs))


def _is_open(value: Any) -> bool:
    return any(map(_is_open, value)) if isinstance(value, (list, tuple)) else isinstance(value, ResultNumber)


def _filled(value: Any, results: Sequence[Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_filled(item, results) for item in value)
    return results[value.position] if isinstance(value, ResultNumber) else value


@dataclass(frozen=True)
class OutputPlan:
    """How one output of the user's graph is made from what the compiled graph returned.

    `origin` is "graph" (result `index` of the compiled graph), "input" (flat input `index`), "view" (`index` of the
    signature's `views`) or "constant" (`value`).
    The output is that very object when there are no `steps`, else the view of it that the steps describe. `detach`:
    the view takes no part in autograd although its base does. `no_grad`: it was made with the grad mode off, which
    torch remembers in a view; `creation` is how a view was made otherwise. `writes`: it is `.data` of that, which torch
    counts as so often written. `early`: it is a view of an input that is made before the graph runs, so that autograd
    comes to it behind the graph's backward, in which what it hands on would lie beside all else.
    """

    origin: Literal["graph", "input", "view", "constant"]
    index: int = 0
    value: Any = None
    steps: tuple[ViewStep, ...] = ()
    detach: bool = False
    no_grad: bool = False
    creation: str | None = None
    writes: int | None = None
    early: bool = False


@dataclass(frozen=True)
class InputMutation:
    """Flat input `index` gets new data. `result` is the position of the data among the compiled graph's results, copied
    in behind it so that autograd sees the copy; None when autograd has no part in it. Where the graph itself writes the
    data (`in_place`), it does not return that result: it is the input. `writes` is how often torch counts it as
    written; None for inference tensors, where it does not count."""

    index: int
    result: int | None
    writes: int | None = None
    in_place: bool = False


@dataclass(frozen=True)
class Place:
    """Stands for what is kept at `index`: tensors first, then numbers."""

    index: int


@dataclass(frozen=True)
class Unpacked:
    """A tensor that was to be kept: what the user's unpack hook makes of `form`, laid out like `layout`; the Place of
    the tensor itself where there is no layout."""

    form: Any
    layout: WrittenLayout | None = None


@dataclass(frozen=True)
class GraphSignature:
    """How to call a compiled graph. Inputs are numbered as in the flat list: lists are spelled out.

    `results` counts what the compiled graph returns to the runtime: new data of mutated inputs, then outputs.
    `differentiable_results` are those that backward receives a gradient for. `gradients` are the inputs that require
    grad, in the order of backward's results. `gradient_sources` are, for each of them, the positions in
    `differentiable_results` that it depends on: when none of those was used it gets None, as in eager. `unreached` are
    those that never get a gradient: autograd is told of them only if they are leaves, since behind others lies history
    that it would walk into. `result_writes` are positions of results that torch counts as written, and how often;
    `no_views` of those that are views of something in the graph alone, `result_strides` of those that eager lays out
    otherwise where no address hangs on it, and how.
    `constants` are tensors of the user's code that are appended to the inputs, `given_up` the
    inputs whose lists were given up, `number_results` the results that are numbers. What backward takes of numbers is
    no part of `saved`: they are no tensors. `all_gradients`: backward refuses to compute some gradients only;
    `runs_once`: it runs once, unless the user retains the graph. `kept_for` are, for each of `saved`, the positions in
    `differentiable_results` of those that it is kept for, () for all of them; it is empty where nothing is kept for
    some of them alone. `used_up` has, for each of `differentiable_results`, those of them that backward refuses behind
    it, unless the user retains the graph; it is empty where that is all of them. `on_the_way` has, for each of
    `differentiable_results`, those of them that it is computed from with no other between; `arrivals`, by the places of
    these, which node of the backward graph is the gradient that arrives there. Both are empty where there are none.
    `handed_on` are positions in `differentiable_results` of those whose gradients backward returns views of;
    `zeros_from` has, for positions in `gradients`, those that give zeros there, which hang on no gradient, and
    `zeros_at` for places of `on_the_way`. `saved_results` are positions in `differentiable_results` of those that eager
    saves for their own gradients, so that gradients of gradients arrive there. `ways` are, for each of `gradients`, the
    positions in `differentiable_results` of those that autograd comes there from in eager; it is empty where the graph
    has no such inputs apart. `unvisited` are positions in `gradients` of those that it comes to from no result. `edges`
    are the positions in `gradients` in the order in which autograd is told of the inputs; () where that is theirs.
    `views` are tensors that outputs, or others behind them, are views of. `unpacked` are the tensors that were to be
    kept, where the user's hooks are a part of the graphs, which then run without them.
    """

    inputs: tuple[str, ...]
    outputs: tuple[OutputPlan, ...]
    mutations: tuple[InputMutation, ...] = ()
    results: int = 0
    differentiable_results: tuple[int, ...] = ()
    gradients: tuple[int, ...] = ()
    gradient_sources: tuple[tuple[int, ...], ...] = ()
    unreached: tuple[int, ...] = ()
    result_writes: tuple[tuple[int, int], ...] = ()
    no_views: tuple[int, ...] = ()
    result_strides: tuple[tuple[int, tuple[int, ...]], ...] = ()
    constants: tuple[torch.Tensor, ...] = ()
    saved: tuple[SavedValue, ...] = ()
    given_up: tuple[int, ...] = ()
    number_results: tuple[int, ...] = ()
    all_gradients: bool = False
    runs_once: bool = True
    kept_for: tuple[tuple[int, ...], ...] = ()
    used_up: tuple[tuple[int, ...], ...] = ()
    on_the_way: tuple[tuple[int, ...], ...] = ()
    arrivals: tuple[tuple[int, int], ...] = ()
    handed_on: tuple[int, ...] = ()
    zeros_from: tuple[tuple[int, tuple[int, ...]], ...] = ()
    zeros_at: tuple[tuple[int, tuple[int, ...]], ...] = ()
    saved_results: tuple[int, ...] = ()
    ways: tuple[tuple[int, ...], ...] = ()
    unvisited: tuple[int, ...] = ()
    edges: tuple[int, ...] = ()
    views: tuple[OutputPlan, ...] = ()
    unpacked: tuple[Unpacked, ...] = ()

    def origin(self, plan: OutputPlan) -> tuple[str, int]:
        """What an output, or a view, lies in: its kind and its index."""
        while plan.origin == "view":
            plan = self.views[plan.index]
        return plan.origin, plan.index

    @property
    def results_apart(self) -> set[int]:
        """The results that do not lead to all inputs which require grad."""
        places = enumerate(self.differentiable_results)
        return {result for place, result in places if any(place not in results for results in self.ways)}

    @property
    def saved_bytes(self) -> int:
        """Bytes that live from forward to backward, inputs included."""
        return sum(value.bytes for value in self.saved)
