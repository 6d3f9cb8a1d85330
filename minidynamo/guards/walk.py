"""Owns the walk of a condition: the part that descends through the user's modules and dicts and checks their contents.

A walk is a function of arguments of the frame. It returns a tuple of values that the rest of the condition and the
graph need; it returns None, or raises, if a check fails. A walk has two equivalent forms: Python text, and a list of
steps for the compiled function of `native_walk.py`. It contains only guards that both forms can express; `check.py`
keeps the rest. Values are visited depth first, in the order of their storage.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from minidynamo.core import artifacts
from minidynamo.core.names import Namespace, with_globals
from minidynamo.core.records import record
from minidynamo.guards.guard import Guard, GuardKind, reader_of
from minidynamo.guards.native_walk import MAX_DEPTH, TABLES, Op, Step, native_walk
from minidynamo.guards.reader import Reader, ReadValues
from minidynamo.guards.source import (
    Attr,
    CellContents,
    Constant,
    InstanceAttr,
    Item,
    Local,
    Referent,
    Source,
    is_argument_or_item,
    with_constants,
)
from minidynamo.guards.values import class_attribute

# With fewer guards, a separate function is not worth its call.
MIN_GUARDS = 20


@dataclass(frozen=True)
class Walk:
    """A walk, as text and as steps."""

    #: the frame's arguments that the walk takes
    arguments: tuple[str, ...]
    #: the sources whose values the walk returns
    found: ReadValues
    #: the guards that the walk does not check
    rest: tuple[Guard, ...]
    #: the text
    source: str
    #: the function of the text
    function: types.FunctionType
    #: the steps
    steps: tuple[Step, ...]
    #: weak references to the objects that the walk compares by identity
    watched: tuple[weakref.ref[Any], ...]

    def native(self) -> Callable[..., Any] | None:
        """Builds the machine code of the walk; None if not possible."""
        return native_walk(self.steps, len(self.found.sources), self.function)

    def rebound(self, others: Mapping[int, object]) -> Walk:
        """Returns the walk over other objects: `others` maps the id of an object to the object to visit instead."""
        steps = tuple(step._replace(expected=others.get(id(step.expected), step.expected)) for step in self.steps)
        found = replace(self.found, sources=with_constants((*self.found.sources,), others))
        return replace(self, found=found, rest=(), function=with_globals(self.function, others), steps=steps)


def plan_walk(
    guards: Sequence[Guard], wanted: Sequence[Source], parameters: Sequence[str], name: str = "frame"
) -> Walk | None:
    """Plans a walk that checks as many of `guards` as possible; the guards of one value stay in order.

    The walk returns the values at `wanted`, and the tensors with guards, where reachable. Returns None if it would be
    short.
    """
    names = Namespace(parameters)
    tree = _Tree(reader_of(guards, names))
    rest = tuple(guard for guard in guards if not tree.add(guard))
    if len(guards) - len(rest) < MIN_GUARDS:
        return None
    values = dict.fromkeys([*wanted, *(guard.source for guard in guards if guard.kind is GuardKind.TENSOR)])
    found = tuple(source for source in values if not is_argument_or_item(source) and tree.visit(source) is not None)
    arguments = tuple(parameter for parameter in parameters if Local(parameter) in tree.starts)
    steps = tuple(tree.steps({source: index for index, source in enumerate(found)}, arguments))
    function = names.fresh("walk")
    source = _text(function, arguments, tree.guards(), found, guards, names)
    loaded = artifacts.load("guards", name, source, names.values, function)
    del names.values[function]  # a function that its own globals hold would be a reference cycle
    return Walk(arguments, ReadValues(names.fresh("found"), found), rest, source, loaded, steps, names.watched())


def _text(
    name: str,
    arguments: Sequence[str],
    checked: Sequence[Guard],
    found: Sequence[Source],
    guards: Sequence[Guard],
    names: Namespace,
) -> str:
    reader = reader_of(guards, names)
    conditions = dict.fromkeys(text for guard in checked for text in guard.conditions(reader))
    finished = reader.finished([*conditions, *map(reader.read, found)])
    texts, values = finished[: len(conditions)], finished[len(conditions) :]
    lines = [f"def {name}({', '.join(arguments)}):", "    if ("]
    lines += [f"        {'and ' if position else ''}{text}" for position, text in enumerate(texts)]
    lines += ["    ):", f"        return ({''.join(f'{value}, ' for value in values)})", "    return None", ""]
    return "\n".join(lines)


@record
class _Visit:
    """A value that a walk visits."""

    #: the step that reaches the value
    arrival: Step
    #: the guards on the value, with their steps
    checks: list[tuple[Guard, Step]] = field(default_factory=list)
    #: the values read from it
    below: dict[Source, _Visit] = field(default_factory=dict)

    def is_for_length(self) -> bool:
        """Returns whether only the length of the value, an item of a dict, is checked, as for tables of hooks."""
        ops = [step.op for _, step in self.checks]
        return self.arrival.op is Op.ITEM and ops == [Op.LENGTH] and not self.below


class _Tree:
    """The tree of all visits of a walk."""

    def __init__(self, reader: Reader) -> None:
        self.starts: dict[Source, _Visit] = {}
        self._reader = reader
        self._visits: dict[Source, _Visit | None] = {}

    def add(self, guard: Guard) -> bool:
        """Adds a guard to the walk; returns False if no step can check it."""
        row, source = guard.kind.value, guard.source
        is_below = source.depth() or (row.reads_dictionary and isinstance(source, Constant))
        step = row.step(self._reader, source, guard.expected) if is_below else None
        start = Attr(source, "__dict__") if row.reads_dictionary else source
        visit = self.visit(start) if step is not None else None
        if step is None or visit is None:
            return False
        visit.checks.append((guard, step))
        return True

    def visit(self, source: Source) -> _Visit | None:
        """Returns the visit of the value at `source`; None if the walk cannot reach it."""
        if source not in self._visits:
            base = _base(source)
            above = None if base is None else self.visit(base)
            arrival = _arrival(self._reader, source, -1 if above is None else above.arrival.depth + 1)
            unreachable = arrival is None or (base is not None and above is None) or arrival.depth + 2 > MAX_DEPTH
            self._visits[source] = visit = None if arrival is None or unreachable else _Visit(arrival)
            if visit is not None:
                (self.starts if above is None else above.below)[source] = visit
        return self._visits[source]

    def steps(self, indices: Mapping[Source, int], parameters: Sequence[str]) -> Iterator[Step]:
        """Yields all steps; `indices` maps a source to the index of its value in the result."""
        for source, visit in self._in_order(self.starts):
            depth = visit.arrival.depth + 1
            if visit.is_for_length() and source not in indices:
                ((_, length),) = visit.checks
                yield visit.arrival._replace(op=Op.ITEM_LENGTH, number=length.number)
                continue
            yield (
                visit.arrival._replace(number=parameters.index(source.name))
                if isinstance(source, Local)
                else visit.arrival
            )
            yield from (step._replace(depth=depth) for _, step in visit.checks)
            if source in indices:
                yield Step(Op.KEEP, depth, indices[source])

    def guards(self) -> list[Guard]:
        """Lists the guards in the order of their steps."""
        return [guard for _, visit in self._in_order(self.starts) for guard, _ in visit.checks]

    def _in_order(self, visits: dict[Source, _Visit]) -> Iterator[tuple[Source, _Visit]]:
        todo = [*reversed(visits.items())]
        while todo:
            source, visit = todo.pop()
            yield source, visit
            todo += reversed(visit.below.items())


def _base(source: Source) -> Source | None:
    """Returns the source that a value is read from: for an instance attribute, the instance's dictionary."""
    return Attr(source.of, "__dict__") if isinstance(source, InstanceAttr) else source.base


def _arrival(reader: Reader, source: Source, depth: int) -> Step | None:
    """Returns the step from the base of a source, at `depth`, to its value; None if there is no such step."""
    if isinstance(source, Local):
        return Step(Op.START, depth)
    if isinstance(source, Referent):
        weak = reader.names.weak(source.value, "key")
        return None if weak is None else Step(Op.START, depth, -2, reader.names.values[weak])
    if isinstance(source, Constant):
        return Step(Op.START, depth, -1, source.value)
    if isinstance(source, InstanceAttr):
        return Step(Op.ITEM, depth, expected=source.name)
    if isinstance(source, Attr) and source.name == "__dict__" and _has_plain_dictionary(reader.class_of(source.of)):
        return Step(Op.DICTIONARY, depth)
    if isinstance(source, CellContents):
        return Step(Op.CELL, depth)
    if isinstance(source, Item):
        cls = reader.class_of(source.of)
        if type(source.key) is str and cls in TABLES:
            return Step(Op.ITEM, depth, expected=source.key)
        if type(source.key) is int and source.key >= 0 and cls in (list, tuple):
            return Step(Op.ELEMENT, depth, source.key)
    return None


def _has_plain_dictionary(cls: type | None) -> bool:
    """Returns whether `v.__dict__` of an instance is its dictionary. Contents of tensors are read after the tensor
    checks.
    """
    if cls is None or not cls.__dictoffset__ or issubclass(cls, torch.Tensor):
        return False
    if cls is types.ModuleType:
        return True
    is_plain = isinstance(class_attribute(cls, "__dict__"), types.GetSetDescriptorType)
    return is_plain and cls.__getattribute__ is object.__getattribute__


@record(frozen=True)
class WalkSlot:
    """A global of a condition: the function of a walk, which machine code may replace."""

    #: the walk
    walk: Walk
    #: the globals of the condition
    namespace: dict[str, Any]
    #: the name of the walk's function
    name: str

    def make_native(self) -> None:
        """Replaces the walk by machine code where possible; the first call in a process may wait for a compiler."""
        if self.namespace[self.name] is self.walk.function:
            self.namespace[self.name] = self.walk.native() or self.walk.function
