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
    """Values of one call, from which outputs are made. Views are made at the first read."""

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

    def element(self, list_key: _ListKey, index: int, make_list: Callable[[], Iterable[Any]]) -> Any:
        """Returns an element of a list of views.

        The list is made once for all outputs that are its elements, as in eager: autograd then stacks their gradients
        instead of adding them. Each output is a separate tensor: a second request for the same element makes a new
        list.
        """
        for key, elements in self.lists:
            if key == list_key and elements[index] is not None:
                break
        else:
            elements = [*make_list()]
            self.lists.append((list_key, elements))
        element, elements[index] = elements[index], None
        return element

    def view(self, index: int) -> Any:
        if index not in self.views:
            self.views[index] = self.output_builders[index](self)
        return self.views[index]


def output_builder(plan: OutputPlan, positions: dict[int, int]) -> Callable[[CallValues], Any]:
    """Builds a function from `CallValues` to an output, or to a base of outputs."""
    if plan.origin == "constant":
        return lambda values: plan.value
    get_base = _base_getter(plan, positions)
    if not plan.steps and not plan.detach and plan.writes is None and plan.creation is None:
        return get_base

    is_filled = all(step.is_filled for step in plan.steps)
    list_step = max((position for position, step in enumerate(plan.steps) if step.op is operator.getitem), default=0)
    before, rest = plan.steps[:list_step], plan.steps[list_step + 1 if list_step else 0 :]
    list_key, index = (plan.origin, plan.index, before, plan.no_grad), plan.steps[list_step].args[0] if list_step else 0

    def apply_steps(values: CallValues, value: Any, steps: Sequence[ViewStep]) -> Any:
        for step in steps:
            value = (step if is_filled else step.filled(values.values)).apply(value)
        return value

    def view(values: CallValues) -> Any:
        value = get_base(values)
        if before:
            value = values.element(list_key, index, functools.partial(apply_steps, values, value, before))
        value = apply_steps(values, value, rest)
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
    build: Callable[[CallValues], Any], origin: str, index: int, partial: Collection[int]
) -> Callable[[CallValues], Any]:
    """Wraps `build` so that hooks on the output run as in eager, if the output is a view of a result in `partial`."""
    if origin != "graph" or index not in partial:
        return build

    def watched_view(values: CallValues) -> Any:
        value = build(values)
        watch_view(value, values.values[index])
        return value

    return watched_view


def _base_getter(plan: OutputPlan, positions: dict[int, int]) -> Callable[[CallValues], Any]:
    """Builds a function that returns the tensor that an output is, or is a view of."""
    if plan.origin == "view":
        return lambda values: values.view(plan.index)
    if plan.origin == "input":
        index = positions[plan.index]
        return lambda values: values.kept[index]
    return lambda values: values.values[plan.index]
