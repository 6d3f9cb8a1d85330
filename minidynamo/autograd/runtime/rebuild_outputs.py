"""Owns how the user's results are made of what one call of a graph has: inputs, what it returned, and views of either.

An `OutputPlan` says what each of them is; nothing is decided here.
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

_Lists = tuple[str, int, tuple[ViewStep, ...], bool]
"""A list of views: where the tensor is found, the views that end in the list, and whether the grad mode was off."""


class Found:
    """What the outputs of one call are made from: inputs that were kept, what the graph returned, and views of either,
    each of which is made when it is first asked for."""

    def __init__(self, kept: Sequence[Any], made: Sequence[Any], makers: Sequence[Callable[[Found], Any]]) -> None:
        self.kept = kept
        self.made = made
        self.makers = makers
        self.views: dict[int, Any] = {}
        self.lists: list[tuple[_Lists, list[Any]]] = []

    def element(self, of: _Lists, index: int, make: Callable[[], Iterable[Any]]) -> Any:
        """An element of a list of views, which is made once for all outputs that are in it: their gradients are then
        joined, not added. Each output is a tensor of its own: for one that is asked for again, so is the list."""
        for known, parts in self.lists:
            if known == of and parts[index] is not None:
                break
        else:
            parts = [*make()]
            self.lists.append((of, parts))
        found, parts[index] = parts[index], None
        return found

    def view(self, index: int) -> Any:
        if index not in self.views:
            self.views[index] = self.makers[index](self)
        return self.views[index]


def maker(plan: OutputPlan, place: dict[int, int]) -> Callable[[Found], Any]:
    """A function that makes one output, or a view that outputs are made from."""
    if plan.origin == "constant":
        return lambda found: plan.value
    holder = _holder(plan, place)
    if not plan.steps and not plan.detach and plan.writes is None and plan.creation is None:
        return holder

    filled = all(step.is_filled for step in plan.steps)
    chosen = max((place for place, step in enumerate(plan.steps) if step.op is operator.getitem), default=0)
    before, rest = plan.steps[:chosen], plan.steps[chosen + 1 if chosen else 0 :]
    lists, element = (plan.origin, plan.index, before, plan.no_grad), plan.steps[chosen].args[0] if chosen else 0

    def viewed(found: Found, value: Any, steps: Sequence[ViewStep]) -> Any:
        for step in steps:
            value = (step if filled else step.filled(found.made)).apply(value)
        return value

    def view(found: Found) -> Any:
        value = holder(found)
        if before:
            value = found.element(lists, element, functools.partial(viewed, found, value, before))
        value = viewed(found, value, rest)
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


def watching(make: Callable[[Found], Any], origin: str, index: int, apart: Collection[int]) -> Callable[[Found], Any]:
    """`make`, which makes an output, with hooks of a view of a result that lies `apart` running where eager's do."""
    if origin != "graph" or index not in apart:
        return make

    def watched_view(found: Found) -> Any:
        value = make(found)
        watch_view(value, found.made[index])
        return value

    return watched_view


def _holder(plan: OutputPlan, place: dict[int, int]) -> Callable[[Found], Any]:
    """What gives the tensor that an output is, or is a view of."""
    if plan.origin == "view":
        return lambda found: found.view(plan.index)
    if plan.origin == "input":
        index = place[plan.index]
        return lambda found: found.kept[index]
    return lambda found: found.made[plan.index]
