"""Owns the user's outputs of one call: each is an input, a result of the graph, or a view of either.

An `OutputPlan` describes each output, and contains all decisions.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.autograd.graph.signature import OutputPlan, ViewStep
from minidynamo.autograd.runtime.result_hooks import watch_view

_ListKey = tuple[str, int, tuple[ViewStep, ...], bool]
"""Identifies a list of views: origin and index of the tensor, the view steps up to the list, and whether the grad mode
was off."""


class CallValues:
    """Values of one call, used to make outputs. Views are made at the first read."""

    def __init__(
        self, kept: Sequence[Any], values: Sequence[Any], output_builders: Sequence[Callable[[CallValues], Any]]
    ) -> None:
        #: Inputs needed for outputs, by position among the needed inputs.
        self.kept = kept
        #: Results of the compiled graph, by position.
        self.values = values
        #: Builders of the signature's `views`, by index.
        self.output_builders = output_builders
        #: The signature's `views` made so far, by index.
        self.views: dict[int, Any] = {}
        #: Lists of views made so far; an element taken by an output is replaced by None.
        self.lists: list[tuple[_ListKey, list[Any]]] = []

    def element(self, of: _ListKey, index: int, make: Callable[[], Iterable[Any]]) -> Any:
        """Returns an element of a list of views.

        The list is made once for all outputs that are its elements, as in eager: then autograd joins their gradients
        instead of adding them. Each output is a separate tensor: a second request for the same element makes a new
        list.
        """
        for known, parts in self.lists:
            if known == of and parts[index] is not None:
                break
        else:
            parts = [*make()]
            self.lists.append((of, parts))
        element, parts[index] = parts[index], None
        return element

    def view(self, index: int) -> Any:
        if index not in self.views:
            self.views[index] = self.output_builders[index](self)
        return self.views[index]


def output_builder(plan: OutputPlan, positions: dict[int, int]) -> Callable[[CallValues], Any]:
    """Builds a function from `CallValues` to an output, or to a base of outputs."""
    if plan.origin == "constant":
        return lambda found: plan.value
    holder = _base_getter(plan, positions)
    if not plan.steps and not plan.detach and plan.writes is None and plan.creation is None:
        return holder

    filled = all(step.is_filled for step in plan.steps)
    chosen = max((position for position, step in enumerate(plan.steps) if step.op is operator.getitem), default=0)
    before, rest = plan.steps[:chosen], plan.steps[chosen + 1 if chosen else 0 :]
    lists, element = (plan.origin, plan.index, before, plan.no_grad), plan.steps[chosen].args[0] if chosen else 0

    def viewed(values: CallValues, value: Any, steps: Sequence[ViewStep]) -> Any:
        for step in steps:
            value = (step if filled else step.filled(values.values)).apply(value)
        return value

    def view(values: CallValues) -> Any:
        value = holder(values)
        if before:
            value = values.element(lists, element, functools.partial(viewed, values, value, before))
        value = viewed(values, value, rest)
        if plan.creation is not None:
            compat.set_creation(value, plan.creation)
        if plan.writes is None:
            return value.detach() if plan.detach else value
        value = value.data
        if plan.writes:
            compat.set_versions([value], [plan.writes])
        return value

    if plan.no_grad:
        return torch.no_grad()(view)
    return view if torch.is_grad_enabled() else torch.enable_grad()(view)  # the graph may be entered in another mode


def watching_hooks(
    make: Callable[[CallValues], Any], origin: str, index: int, partial: Collection[int]
) -> Callable[[CallValues], Any]:
    """Wraps `make` so that hooks on the output run as in eager, if the output is a view of a result in `partial`."""
    if origin != "graph" or index not in partial:
        return make

    def watched_view(values: CallValues) -> Any:
        value = make(values)
        watch_view(value, values.values[index])
        return value

    return watched_view


def _base_getter(plan: OutputPlan, positions: dict[int, int]) -> Callable[[CallValues], Any]:
    """Builds a function that returns the tensor that an output is, or is a view of."""
    if plan.origin == "view":
        return lambda found: found.view(plan.index)
    if plan.origin == "input":
        index = positions[plan.index]
        return lambda found: found.kept[index]
    return lambda found: found.values[plan.index]
