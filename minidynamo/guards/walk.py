"""Owns the walk of a condition: the part that descends through the user's modules and dicts and checks their contents.

A walk is a function of arguments of the frame. It returns a tuple of values that the rest of the condition and the
graph need; it returns None, or raises, if a check fails. A walk has two equivalent forms: Python text, and a list of
steps for the compiled function of `native_walk.py`. It contains only guards that both forms can express; `check.py`
keeps the rest. Values are visited depth first, in the order of their storage.
"""

from __future__ import annotations

import enum
import functools
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from minidynamo.core import artifacts
from minidynamo.core.names import Namespace
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.reader import Found, Reader
from minidynamo.guards.source import Attr, Constant, InstanceAttr, Item, Local, Referent, Source, is_argument_or_item
from minidynamo.guards.writers import WRITERS, class_attribute, is_exact_literal, is_singleton

# With fewer guards, a separate function is not worth its call.
FEW = 40
# The greatest depth of a walk below its start; the size of an array in native_walk.cpp.
MAX_DEPTH = 32


class Op(enum.IntEnum):
    """The action of a step on `v`, the value at its depth. START to ELEMENT put their result at the next depth."""

    START = 0  # the argument `number`, or `expected` if `number` is -1
    DICTIONARY = 1  # v.__dict__
    ITEM = 2  # v[expected] of a dict
    ELEMENT = 3  # v[number] of a list or tuple
    KEEP = 4  # put v into the result, at index `number`
    TYPE = 5  # v is exactly of the class `expected`, a weak reference if `number` is 1
    IDENTITY = 6  # v is `expected`, a weak reference if `number` is 1
    EQUALS = 7  # v is of the class of `expected`, a number or text, and equal to it
    LENGTH = 8  # v, a container, has `number` elements
    KEYS = 9  # v, a dict, has the keys `expected`, all texts, in this order
    HAS_KEY = 10  # v, a dict, has the key `expected`
    MISSING_KEY = 11  # v, a dict, has no key `expected`
    ITEM_LENGTH = 12  # v[expected] of a dict, a container, has `number` elements


class Step(NamedTuple):
    """An instruction of a walk."""

    #: the action
    op: Op
    #: the depth of the value that the step reads
    depth: int
    #: an index, a length, or a flag; see `Op`
    number: int = 0
    #: a key, a class, or a value; see `Op`
    expected: object = None


@dataclass(frozen=True)
class Walk:
    """A walk, as text and as steps."""

    #: the frame's arguments that the walk takes
    arguments: tuple[str, ...]
    #: the sources whose values the walk returns
    found: Found
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


def plan_walk(
    guards: Sequence[Guard], wanted: Sequence[Source], parameters: Sequence[str], name: str = "frame"
) -> Walk | None:
    """Plans a walk that checks as many of `guards` as possible; the guards of one value stay in order.

    The walk returns the values at `wanted`, and the tensors with guards, where reachable. Returns None if it would be
    short.
    """
    names = Namespace(parameters)
    tree = _Tree(Reader(guards, names))
    rest = tuple(guard for guard in guards if not tree.take(guard))
    if len(guards) - len(rest) < FEW:
        return None
    values = dict.fromkeys([*wanted, *(guard.source for guard in guards if guard.kind is GuardKind.TENSOR)])
    found = tuple(source for source in values if not is_argument_or_item(source) and tree.visit(source) is not None)
    arguments = tuple(parameter for parameter in parameters if Local(parameter) in tree.starts)
    steps = tuple(tree.steps({source: index for index, source in enumerate(found)}, arguments))
    function = names.fresh("walk")
    source = _text(function, arguments, tree.guards(), found, guards, names)
    made = artifacts.load("guards", name, source, names.values, function)
    del names.values[function]  # a function that its own globals hold would be a reference cycle
    return Walk(arguments, Found(names.fresh("found"), found), rest, source, made, steps, names.watched())


def _text(
    name: str,
    arguments: Sequence[str],
    checked: Sequence[Guard],
    found: Sequence[Source],
    guards: Sequence[Guard],
    names: Namespace,
) -> str:
    reader = Reader(guards, names)
    conditions = dict.fromkeys(text for guard in checked for text in WRITERS[guard.kind](reader, guard))
    finished = reader.finished([*conditions, *map(reader.read, found)])
    texts, values = finished[: len(conditions)], finished[len(conditions) :]
    lines = [f"def {name}({', '.join(arguments)}):", "    if ("]
    lines += [f"        {'and ' if position else ''}{text}" for position, text in enumerate(texts)]
    lines += ["    ):", f"        return ({''.join(f'{value}, ' for value in values)})", "    return None", ""]
    return "\n".join(lines)


@dataclass
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

    def take(self, guard: Guard) -> bool:
        """Adds a guard to the walk; returns False if no step can check it."""
        if guard.kind not in _CHECKS or guard.source.depth() == 0:
            return False
        step = _CHECKS[guard.kind](self._reader, guard)
        visit = self.visit(_checked_source(guard)) if step is not None else None
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


def _checked_source(guard: Guard) -> Source:
    """Returns the source of the value that the guard's step checks."""
    return Attr(guard.source, "__dict__") if guard.kind is GuardKind.NO_INSTANCE_ATTR else guard.source


def _arrival(reader: Reader, source: Source, depth: int) -> Step | None:
    """Returns the step from the base of a source, at `depth`, to its value; None if there is no such step."""
    if isinstance(source, Local):
        return Step(Op.START, depth)
    if isinstance(source, Referent):
        return None
    if isinstance(source, Constant):
        return Step(Op.START, depth, -1, source.value)
    if isinstance(source, InstanceAttr):
        return Step(Op.ITEM, depth, expected=source.name)
    if isinstance(source, Attr) and source.name == "__dict__" and _has_plain_dictionary(reader.class_of(source.of)):
        return Step(Op.DICTIONARY, depth)
    if isinstance(source, Item):
        cls = reader.class_of(source.of)
        if type(source.key) is str and cls in _TABLES:
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
    is_plain = isinstance(class_attribute(cls, "__dict__"), types.GetSetDescriptorType)
    return is_plain and cls.__getattribute__ is object.__getattribute__


# The steps of checks, without depth


def _by_identity(op: Op, reader: Reader, expected: object) -> Step:
    if is_singleton(expected):
        return Step(op, 0, 0, expected)
    name, weak = reader.reference(expected)
    return Step(op, 0, int(weak), reader.names.values.get(name, expected))


def _type(reader: Reader, guard: Guard) -> Step | None:
    return _by_identity(Op.TYPE, reader, guard.expected)


def _identity(reader: Reader, guard: Guard) -> Step | None:
    return _by_identity(Op.IDENTITY, reader, guard.expected)


def _equals(reader: Reader, guard: Guard) -> Step | None:
    expected = guard.expected
    if expected is None or type(expected) is bool:
        return _by_identity(Op.IDENTITY, reader, expected)
    return Step(Op.EQUALS, 0, 0, expected) if is_exact_literal(expected) else None


def _length(reader: Reader, guard: Guard) -> Step | None:
    known = reader.class_of(guard.source) in (*_TABLES, list, tuple)
    return Step(Op.LENGTH, 0, guard.expected) if known else None


def _keys(reader: Reader, guard: Guard) -> Step | None:
    known = reader.class_of(guard.source) is dict and all(type(key) is str for key in guard.expected)
    return Step(Op.KEYS, 0, 0, tuple(guard.expected)) if known else None


def _in_table(op: Op, reader: Reader, guard: Guard) -> Step | None:
    known = reader.class_of(guard.source) in _TABLES and type(guard.expected) is str
    return Step(op, 0, 0, guard.expected) if known else None


def _not_in_instance(reader: Reader, guard: Guard) -> Step | None:
    return Step(Op.MISSING_KEY, 0, 0, guard.expected)


# If no guard fixes the class of a dict, the step checks the class.
_TABLES: tuple[type | None, ...] = (None, dict, OrderedDict)
_CHECKS: dict[GuardKind, Callable[[Reader, Guard], Step | None]] = {
    GuardKind.TYPE: _type,
    GuardKind.IDENTITY: _identity,
    GuardKind.EQUALS: _equals,
    GuardKind.LENGTH: _length,
    GuardKind.DICT_KEYS: _keys,
    GuardKind.HAS_KEY: functools.partial(_in_table, Op.HAS_KEY),
    GuardKind.MISSING_KEY: functools.partial(_in_table, Op.MISSING_KEY),
    GuardKind.NO_INSTANCE_ATTR: _not_in_instance,
}
