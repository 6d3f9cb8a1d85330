"""Owns the walk of a condition: the part that goes through the user's modules and tables and looks at what they hold.

A walk is a function of arguments of the frame. It gives a tuple of the values that the rest of the condition and the
graph ask for; None, or an error, when something is not as it was. It is Python text, and the same as a list of steps,
which `native_walk.py` hands to a compiled function. It takes only guards that both can spell; everything else stays
with `check.py`. Values are visited one after the other with all that is below them, as they lie in memory.
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
from minidynamo.guards.source import Attr, Constant, InstanceAttr, Item, Local, Referent, Source, is_passed
from minidynamo.guards.writers import WRITERS, class_attribute, is_its_literal, is_singleton

# With fewer guards than this, a function of their own is not worth its call.
FEW = 40
# How far a walk goes from where it starts; native_walk.cpp has as much room.
MAX_DEPTH = 32


class Op(enum.IntEnum):
    """What a step does with `v`, the value at its depth. Those that go on leave what they find one deeper."""

    START = 0  # begin at the argument `number`, or at `expected` when that is -1
    DICTIONARY = 1  # go on to v.__dict__
    ITEM = 2  # go on to v[expected] of a dict
    ELEMENT = 3  # go on to v[number] of a list or tuple
    KEEP = 4  # put v into the result, at `number`
    TYPE = 5  # v is exactly of the class `expected`, or of the one it refers to weakly when `number` is 1
    IDENTITY = 6  # v is `expected`, or what it refers to weakly when `number` is 1
    EQUALS = 7  # v is of the class of `expected`, a number or text, and equal to it
    LENGTH = 8  # v, a container, has `number` elements
    KEYS = 9  # v, a dict, has the keys `expected` in this order, all of them texts
    HAS_KEY = 10  # v, a dict, has the key `expected`
    MISSING_KEY = 11  # v, a dict, has no key `expected`
    ITEM_LENGTH = 12  # v[expected] of a dict, a container, has `number` elements


class Step(NamedTuple):
    """One instruction of a walk."""

    op: Op
    depth: int
    number: int = 0
    expected: object = None


@dataclass(frozen=True)
class Walk:
    """A walk over `arguments` that gives what is at the sources `found`, as text and as steps; `rest` it leaves out.

    `watched` are the objects that it compares by identity.
    """

    arguments: tuple[str, ...]
    found: Found
    rest: tuple[Guard, ...]
    source: str
    function: types.FunctionType
    steps: tuple[Step, ...]
    watched: tuple[weakref.ref[Any], ...]


def plan_walk(
    guards: Sequence[Guard], wanted: Sequence[Source], parameters: Sequence[str], name: str = "frame"
) -> Walk | None:
    """The walk that checks as many of `guards` as it can, in their order as far as they concern one value.

    It gives what is at `wanted`, and the tensors that a guard concerns, if it gets there. None when it would be short.
    """
    names = Namespace(parameters)
    tree = _Tree(Reader(guards, names))
    rest = tuple(guard for guard in guards if not tree.take(guard))
    if len(guards) - len(rest) < FEW:
        return None
    values = dict.fromkeys([*wanted, *(guard.source for guard in guards if guard.kind is GuardKind.TENSOR)])
    found = tuple(source for source in values if not is_passed(source) and tree.visit(source) is not None)
    arguments = tuple(parameter for parameter in parameters if Local(parameter) in tree.starts)
    steps = tuple(tree.steps({source: place for place, source in enumerate(found)}, arguments))
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
    """A value that a walk comes to: by which step, what it checks there, and where it goes on to."""

    way: Step
    checks: list[tuple[Guard, Step]] = field(default_factory=list)
    below: dict[Source, _Visit] = field(default_factory=dict)

    def is_for_length(self) -> bool:
        """Whether nobody asks for more than how long an item of a dict is, as of tables of hooks."""
        ops = [step.op for _, step in self.checks]
        return self.way.op is Op.ITEM and ops == [Op.LENGTH] and not self.below


class _Tree:
    """All visits of a walk, from where it starts."""

    def __init__(self, reader: Reader) -> None:
        self.starts: dict[Source, _Visit] = {}
        self._reader = reader
        self._visits: dict[Source, _Visit | None] = {}

    def take(self, guard: Guard) -> bool:
        """Check this guard on the way. False when no step does."""
        if guard.kind not in _CHECKS or guard.source.depth() == 0:
            return False
        step = _CHECKS[guard.kind](self._reader, guard)
        visit = self.visit(_place(guard)) if step is not None else None
        if step is None or visit is None:
            return False
        visit.checks.append((guard, step))
        return True

    def visit(self, source: Source) -> _Visit | None:
        """The visit of the value at `source`; None when the walk cannot get there."""
        if source not in self._visits:
            base = _base(source)
            above = None if base is None else self.visit(base)
            way = _way(self._reader, source, -1 if above is None else above.way.depth + 1)
            unreachable = way is None or (base is not None and above is None) or way.depth + 2 > MAX_DEPTH
            self._visits[source] = visit = None if way is None or unreachable else _Visit(way)
            if visit is not None:
                (self.starts if above is None else above.below)[source] = visit
        return self._visits[source]

    def steps(self, places: Mapping[Source, int], parameters: Sequence[str]) -> Iterator[Step]:
        """All steps; what is at a source of `places` is kept there in the result."""
        for source, visit in self._in_order(self.starts):
            depth = visit.way.depth + 1
            if visit.is_for_length() and source not in places:
                ((_, length),) = visit.checks
                yield visit.way._replace(op=Op.ITEM_LENGTH, number=length.number)
                continue
            yield visit.way._replace(number=parameters.index(source.name)) if isinstance(source, Local) else visit.way
            yield from (step._replace(depth=depth) for _, step in visit.checks)
            if source in places:
                yield Step(Op.KEEP, depth, places[source])

    def guards(self) -> list[Guard]:
        """What is checked, in the order of the steps."""
        return [guard for _, visit in self._in_order(self.starts) for guard, _ in visit.checks]

    def _in_order(self, visits: dict[Source, _Visit]) -> Iterator[tuple[Source, _Visit]]:
        todo = [*reversed(visits.items())]
        while todo:
            source, visit = todo.pop()
            yield source, visit
            todo += reversed(visit.below.items())


def _base(source: Source) -> Source | None:
    """From where a value is read: attributes of an instance from its dictionary."""
    return Attr(source.of, "__dict__") if isinstance(source, InstanceAttr) else source.base


def _place(guard: Guard) -> Source:
    """The value of which the guard's step tells."""
    return Attr(guard.source, "__dict__") if guard.kind is GuardKind.NO_INSTANCE_ATTR else guard.source


def _way(reader: Reader, source: Source, depth: int) -> Step | None:
    """The step from the base of a source, which lies at `depth`, to its value; None where there is none."""
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
    """Whether `v.__dict__` of an instance is its dictionary. What tensors hold is looked at when they were checked."""
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
    return Step(Op.EQUALS, 0, 0, expected) if is_its_literal(expected) else None


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


# When no guard tells of which class a table is, the step looks.
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
