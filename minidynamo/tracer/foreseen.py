"""Owns what is known to vary of the values with which a frame goes on behind a graph break.

A frame behind a break is compiled on its own, and would see a size that varies for the first time. What the frame in
front of the break has found out is handed on as a profile, so that no second compile is needed to find it out again.
It is a guess: what the instruction at the break does to the values is not known. A wrong one costs a symbol.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from minidynamo.bytecode.layout import NULL, FramePoint
from minidynamo.guards.profile import Fact, FrameProfile, relative_strides
from minidynamo.guards.shapes import Shapes, stable_name
from minidynamo.guards.source import Attr, CellContents, Item, Local, Source
from minidynamo.tracer.moved_items import MovedItems, MovedTable, as_moved, entries_as_moved
from minidynamo.tracer.traced_frame import Break, Null, TracedFrame
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import CellVariable
from minidynamo.variables.containers import DictVariable, SequenceVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.tensors import TensorVariable


def foreseen(traced: TracedFrame, cut: Break, following: FramePoint, profile: FrameProfile) -> FrameProfile:
    """What varies where the frame goes on at `following`, behind the instruction at the cut; `profile` is its own."""
    found = _Facts(traced, profile)
    for name, value in _arriving(cut, following).items():
        found.add(value, Local(name))
    return found.facts


def _arriving(cut: Break, following: FramePoint) -> Mapping[str, VariableTracker]:
    """The values by the names under which they arrive, but for those that the instruction takes from the stack."""
    below = min(len(cut.stack), len(following.stack)) - 1
    stack = [None if isinstance(v, Null) else v for v in (*cut.stack[:below], *[None] * len(following.stack))]
    values = [
        *(cut.cells.get(name) for name in following.cells),
        *(value for kind, value in zip(following.stack, stack) if kind != NULL),
        *(cut.local_variables.get(name) for name in following.locals),
    ]
    return {name: value for name, value in zip(following.parameters, values) if value is not None}


class _Facts:
    """Collects facts about the values that travel."""

    def __init__(self, traced: TracedFrame, profile: FrameProfile) -> None:
        numbers: dict[str, Fact] = {name: fact for name, fact in profile.numbers.items() if fact is None}
        tensors = {name: parts for name, parts in profile.tensors.items() if None in (*parts[0], *parts[1])}
        self._known = FrameProfile(numbers=numbers, tensors=tensors)
        # What lies outside the frame has the same name behind the break.
        self.facts = FrameProfile(
            numbers={name: fact for name, fact in numbers.items() if "L[" not in name},
            tensors={name: parts for name, parts in tensors.items() if "L[" not in name},
        )
        self._shapes = traced.shapes
        self._side_effects = traced.side_effects
        self._seen: set[tuple[VariableTracker, Source]] = set()

    def add(self, value: VariableTracker, place: Source) -> None:
        """What varies of a value that arrives at a place, and of what it holds."""
        if (value, place) in self._seen or len(self._seen) >= _MOST_VALUES:
            return
        self._seen.add((value, place))
        if value.source is not None:
            self._carry_over(stable_name(value.source), stable_name(place))
        if isinstance(value, TensorVariable | NumberVariable):
            if self._shapes is not None:
                self._add_made(value, stable_name(place), self._shapes)
        elif isinstance(value, CellVariable):
            if value.contents is not None:
                self.add(value.contents, CellContents(place))
        elif isinstance(value, SequenceVariable) and isinstance(value.items, list | tuple | MovedItems):
            for position, item in enumerate(as_moved(value.items)):
                self.add(item, Item(place, position))
        elif isinstance(value, DictVariable) and isinstance(value.items, dict | MovedTable):
            for key, item in entries_as_moved(value.items).items():
                if isinstance(key.token, int | str):
                    self.add(item, Item(place, key.token))
        for name, held in self._side_effects.written_attrs(value).items():
            if isinstance(held, VariableTracker):
                self.add(held, Attr(place, name))

    def _carry_over(self, old: str, new: str) -> None:
        """What is known of a place, for the name that it has now."""
        for name in self._known.numbers:
            if _is_within(name, old):
                self.facts.numbers[new + name[len(old) :]] = None
        for name, parts in self._known.tensors.items():
            if _is_within(name, old):
                self.facts.tensors[new + name[len(old) :]] = parts

    def _add_made(self, value: TensorVariable | NumberVariable, name: str, shapes: Shapes) -> None:
        if isinstance(value, NumberVariable):
            is_constant = isinstance(value.value, torch.SymInt) and shapes.constant_behind(value.value) is not None
            if value.pinned is None and not is_constant:
                self.facts.numbers[name] = None
            return
        sizes, strides = (_now(shapes, part) for part in (value.fake.shape, value.fake.stride()))
        if None in sizes:
            here = [[_here(number) for number in part] for part in (value.fake.shape, value.fake.stride())]
            relative = relative_strides(*here)
            jumps = [fact if isinstance(fact, str) else known for fact, known in zip(relative, strides)]
            self.facts.tensors[name] = (tuple(sizes), tuple(jumps))


def _is_within(name: str, place: str) -> bool:
    """Whether a name is that of a place, or of something that it holds."""
    return name.startswith(place) and name[len(place) : len(place) + 1] in ("", ".", "[")


def _now(shapes: Shapes, numbers: tuple[int | torch.SymInt, ...]) -> list[Fact]:
    """Numbers that are constants, and None for those that vary."""
    return [shapes.constant_behind(n) if isinstance(n, torch.SymInt) else n for n in numbers]


def _here(number: int | torch.SymInt) -> int:
    here: int = number.node.hint if isinstance(number, torch.SymInt) else number
    return here


# Of frames that hold more, the rest is left to be found out again.
_MOST_VALUES = 500
