"""Owns the guard kinds, one row each, and the record of one guard.

A row is all that a new kind needs, next to its example in docs/guards.md. `check.py` orders and combines guards. Every
condition is safe to evaluate on any value for which the guards on shorter sources hold: it runs no user code.
"""

from __future__ import annotations

import enum
import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from minidynamo.compat import is_immutable_class
from minidynamo.core.names import Namespace
from minidynamo.core.records import record
from minidynamo.errors import UserLocation
from minidynamo.guards.advice import (
    ONE_KEY,
    SAME_CLASS,
    SEPARATE,
    SIZES_VARY,
    WITH_AND_WITHOUT,
    for_length,
    for_number,
    for_object,
    for_tensor,
)
from minidynamo.guards.native_walk import TABLES, Op, Step
from minidynamo.guards.reader import Reader, ReadValues
from minidynamo.guards.source import (
    HOOK_TABLES,
    TENSOR_FACTS,
    Attr,
    Constant,
    InstanceAttr,
    Item,
    Referent,
    Source,
    key_expression,
)
from minidynamo.guards.state import GlobalState, current
from minidynamo.guards.state import differences as changed_settings
from minidynamo.guards.tensors import attribute_checks
from minidynamo.guards.values import (
    ABSENT,
    CONTAINERS,
    brief,
    brief_difference,
    brief_list,
    class_attribute,
    is_empty,
    is_exact_literal,
    is_singleton,
    is_unset,
    lacks_attribute,
    same_objects,
    same_value,
)


@record(frozen=True, eq=False)
class Row:
    """A guard kind. The functions receive the source, the expected value and the actual value of a guard."""

    #: the name, a heading of docs/guards.md
    name: str
    #: the words before the source in messages, such as "type of"
    subject: str
    #: writes the conditions, all of which hold if the guard holds
    writer: Callable[[Reader, Source, Any], list[str]]
    #: the fix in the message of a recompile
    advice: str
    #: describes the expected value
    expected: Callable[[Any], str] = brief
    #: describes the actual value
    actual: Callable[[Any, Any], str] = lambda expected, actual: brief(actual)
    #: a better fix for some sources and values, or ""
    advice_for: Callable[[Source, Any, Any], str] = lambda source, expected, actual: ""
    #: writes the step of a walk, without its depth; None for guards that need the text
    step: Callable[[Reader, Source, Any], Step | None] = lambda reader, source, expected: None
    #: returns the class of a value for which the guard holds
    cls: Callable[[Any], type] | None = None
    #: whether an object of the user may be expected, to which entries refer weakly
    expects_object: bool = False
    #: the part of the expected value that the guards of one source differ in; None: a source has one such guard
    part: Callable[[Any], object] | None = None
    #: returns the sources that the guard reads in addition to its own
    others: Callable[[Any], tuple[Source, ...]] = lambda expected: ()
    #: whether the dictionary of the object is read, which is one read more than the source
    reads_dictionary: bool = False
    #: whether the guard is about the process, and not about the value at its source
    ignores_source: bool = False
    #: the stage of the check; None: by the source, see `check.py`
    stage: int | None = None


# Conditions


def _is(reader: Reader, text: str, expected: object) -> str:
    """Writes `found is expected`, without keeping a user's object alive. A dead reference returns None, which must not
    match.
    """
    if is_singleton(expected):
        return f"{text} is {expected!r}"
    name, weak = reader.reference(expected)
    return f"{text} is {name}() is not None" if weak else f"{text} is {name}"


def _type(reader: Reader, source: Source, cls: type) -> list[str]:
    return [_is(reader, f"{reader.constant(type, 'type')}({reader.read(source)})", cls)]


def _identity(reader: Reader, source: Source, expected: object) -> list[str]:
    return [_is(reader, reader.read(source), expected)]


def _equals(reader: Reader, source: Source, expected: Any) -> list[str]:
    cls = type(expected)
    if expected is None or cls is bool:
        return _identity(reader, source, expected)
    if isinstance(source, TENSOR_FACTS):  # always of one class
        value = repr(expected) if cls is int else reader.constant(expected, cls.__name__)
        return [f"{reader.read(source)} == {value}"]
    if is_exact_literal(expected):
        is_type = f"{reader.constant(type, 'type')}({reader.read(source)}) is {reader.constant(cls, cls.__name__)}"
        return [f"{is_type} and {reader.read(source)} == {expected!r}"]
    value = key_expression(expected, reader.names) if cls is tuple else reader.constant(expected, cls.__name__)
    return [f"{reader.constant(same_value, 'same_value')}({reader.read(source)}, {value})"]


def _container(reader: Reader, source: Source) -> tuple[type | None, bool]:
    """Returns the class whose methods can read the container at `source`, and whether it is the container's exact
    class.
    """
    cls = reader.class_of(source)
    if cls is None:
        return None, True
    owner = next((base for base in cls.__mro__ if base in CONTAINERS), None)
    return owner, owner is cls


def _method(reader: Reader, source: Source, builtin: str, method: str) -> str:
    """Writes `builtin(value)`, through the base class if the value's class might override `method`."""
    owner, exact = _container(reader, source)
    if owner is None or exact:
        return f"{builtin}({reader.read(source)})"
    return f"{reader.constant(owner, owner.__name__)}.{method}({reader.read(source)})"


def _length(reader: Reader, source: Source, expected: int) -> list[str]:
    is_hooks = isinstance(source, InstanceAttr) and source.name in HOOK_TABLES
    if expected == 0 and (_container(reader, source)[1] and (is_hooks or reader.class_of(source) is not None)):
        return [f"not {reader.read(source)}"]
    return [f"{_method(reader, source, reader.constant(len, 'len'), '__len__')} == {expected!r}"]


def _dict_keys(reader: Reader, source: Source, keys: Sequence[object]) -> list[str]:
    iterator = _method(reader, source, reader.constant(iter, "iter"), "__iter__")
    if keys and all(isinstance(key, Referent) for key in keys):
        expected = ", ".join(key_expression(key, reader.names) for key in keys)
        return [f"{reader.constant(same_objects, 'same_objects')}({iterator}, {expected})"]
    read_keys = f"{reader.constant(tuple, 'tuple')}({iterator})"
    expected = key_expression(tuple(keys), reader.names)
    if all(type(key) is str for key in keys):
        return [f"{read_keys} == {expected}"]
    return [f"{reader.constant(same_value, 'same_value')}({read_keys}, {expected})"]


def _has_key(reader: Reader, source: Source, expected: object, word: str = "in") -> list[str]:
    owner, exact = _container(reader, source)
    key = key_expression(expected, reader.names)
    if owner is None or exact:
        return [f"{key} {word} {reader.read(source)}"]
    negation = "not " if word == "not in" else ""
    return [f"{negation}{reader.constant(owner, owner.__name__)}.__contains__({reader.read(source)}, {key})"]


def _set_items(reader: Reader, source: Source, items: frozenset[object]) -> list[str]:
    read_items = f"{reader.constant(frozenset, 'frozenset')}({reader.read(source)})"
    same = reader.constant(same_value, "same_value")
    if any(map(_is_weakly_held, items)):
        expected = f"{reader.constant(frozenset, 'frozenset')}({key_expression(tuple(items), reader.names)})"
    else:
        expected = reader.constant(frozenset(items), "items")
    return [f"{same}({read_items}, {expected})"]


def _is_weakly_held(key: object) -> bool:
    """Returns whether a key, or an item of a tuple key, is referred to weakly."""
    return any(map(_is_weakly_held, key)) if type(key) is tuple else isinstance(key, Referent)


def _no_instance_attr(reader: Reader, source: Source, name: str) -> list[str]:
    cls = reader.class_of(source)
    if cls is not None and cls.__dictoffset__ == 0 and not issubclass(cls, threading.local):
        return []
    return [f"{name!r} not in {reader.read(Attr(source, '__dict__'))}"]


def _missing_attr(reader: Reader, source: Source, name: str) -> list[str]:
    lines = _no_instance_attr(reader, source, name)
    cls = reader.class_of(source)
    if cls is not None:
        return lines + _class_lacks(reader, cls.__mro__, name)
    read_class = f"{reader.constant(type, 'type')}({reader.read(source)})"
    return [*lines, f"{reader.constant(lacks_attribute, 'lacks_attribute')}({read_class}, {name!r})"]


def _class_lacks(reader: Reader, classes: tuple[type, ...], name: str) -> list[str]:
    return [f"{name!r} not in {_class_dict(reader, cls)}" for cls in classes if not is_immutable_class(cls)]


def _class_dict(reader: Reader, cls: type) -> str:
    name, weak = reader.reference(cls)
    return f"{name}().__dict__" if weak else reader.read(Attr(Constant(cls, cls.__name__), "__dict__"))


def _class_attr(reader: Reader, source: Source, pair: tuple[str, object]) -> list[str]:
    name, expected = pair
    cls = reader.class_at(source)
    owner = next((base for base in cls.__mro__ if name in base.__dict__), None) if cls is not None else None
    if cls is None or owner is None or owner.__dict__[name] is not expected:
        read_attribute = f"{reader.constant(class_attribute, 'class_attribute')}({reader.read(source)}, {name!r})"
        return [_is(reader, read_attribute, expected)]
    lines = _class_lacks(reader, cls.__mro__[: cls.__mro__.index(owner)], name)
    if is_immutable_class(owner):
        return lines
    attribute, weak = Item(Attr(Constant(owner, owner.__name__), "__dict__"), name), reader.reference(owner)[1]
    read_attribute = f"{_class_dict(reader, owner)}[{name!r}]" if weak else reader.read(attribute)
    return [*lines, _is(reader, read_attribute, expected)]


def _class_names(reader: Reader, source: Source, content: tuple[Sequence[str], tuple[type, ...]]) -> list[str]:
    names, bases = content
    cls = reader.class_at(source)
    name, weak = (reader.read(source), False) if cls is None else reader.reference(cls)
    cls_text = f"{name}()" if weak else name
    read_names = f"{name}.__dict__" if cls is None else _class_dict(reader, cls)
    texts = [f"[*{read_names}] == {reader.constant([*names], 'class_names')}"]
    if bases != (object,):  # the base (object,) cannot be replaced
        texts.append(f"{cls_text}.__bases__ is {reader.constant(bases, 'bases')}")
    return texts


def _distinct_objects(reader: Reader, source: Source, others: tuple[Source, ...]) -> list[str]:
    if len(others) == 1:
        return [f"{reader.read(source)} is not {reader.read(others[0])}"]
    values = ", ".join(map(reader.read, (source, *others)))
    identities = f"{{*{reader.constant(map, 'map')}({reader.constant(id, 'id')}, ({values}))}}"
    return [f"{reader.constant(len, 'len')}({identities}) == {1 + len(others)}"]


def _global_state(reader: Reader, source: Source, expected: GlobalState) -> list[str]:
    return [f"{reader.constant(current, 'current_state')}() == {reader.constant(expected, 'state')}"]


# Steps of walks


def _identity_step(op: Op, reader: Reader, expected: object) -> Step:
    if is_singleton(expected):
        return Step(op, 0, 0, expected)
    name, weak = reader.reference(expected)
    return Step(op, 0, int(weak), reader.names.values.get(name, expected))


def _equals_step(reader: Reader, source: Source, expected: object) -> Step | None:
    if expected is None or type(expected) is bool:
        return _identity_step(Op.IDENTITY, reader, expected)
    return Step(Op.EQUALS, 0, 0, expected) if is_exact_literal(expected) else None


def _length_step(reader: Reader, source: Source, expected: int) -> Step | None:
    return Step(Op.LENGTH, 0, expected) if reader.class_of(source) in (*TABLES, list, tuple) else None


def _keys_step(reader: Reader, source: Source, keys: Sequence[object]) -> Step | None:
    known = reader.class_of(source) is dict and all(type(key) is str for key in keys)
    return Step(Op.KEYS, 0, 0, tuple(keys)) if known else None


def _key_step(op: Op, reader: Reader, source: Source, key: object) -> Step | None:
    return Step(op, 0, 0, key) if reader.class_of(source) in TABLES and type(key) is str else None


# Words


def _actual_object(expected: object, actual: object) -> str:
    return f"another {brief(actual)}" if brief(actual) == brief(expected) else brief(actual)


def _actual_attribute(name: str, actual: Any) -> str:
    return f"`{name}` in the instance" if name in actual.__dict__ else f"`{name}` in the class"


def _actual_class_attribute(pair: tuple[str, object], cls: Any) -> str:
    try:
        return f"{brief(class_attribute(cls, pair[0]))}{' (another object)' if callable(pair[1]) else ''}"
    except KeyError:
        return "no such attribute"


def _actual_names(content: tuple[Sequence[str], object], cls: Any) -> str:
    names, actual = content[0], cls.__dict__
    added, lost = (", ".join(f"`{name}`" for name in a if name not in b) for a, b in ((actual, names), (names, actual)))
    words = [f"{added} in addition"] * bool(added) + [f"{lost} missing"] * bool(lost)
    return ", ".join(words) or "another order, or other bases"


class GuardKind(enum.Enum):
    """The property of the value at the source that a guard checks; each comment describes `expected`."""

    # None: there is a value, of any kind
    PRESENT = Row(
        name="present",
        subject="value of",
        writer=lambda reader, source, _: [f"{reader.read(source)} is not {reader.constant(ABSENT, 'absent')}"],
        expected=lambda _: "any",
        advice=WITH_AND_WITHOUT,
    )
    # None: there is a value other than None
    NOT_NONE = Row(
        name="not none",
        subject="value of",
        writer=lambda reader, source, _: [f"{reader.read(source)} is not None"],
        expected=lambda _: "any but None",
        advice=WITH_AND_WITHOUT,
    )
    # the exact class
    TYPE = Row(
        name="type",
        subject="type of",
        writer=_type,
        step=lambda reader, source, cls: _identity_step(Op.TYPE, reader, cls),
        cls=lambda cls: cls,
        expects_object=True,
        expected=lambda cls: str(cls.__qualname__),
        actual=lambda _, actual: str(type(actual).__qualname__),
        advice="Pass values of one class, or compile one function per class.",
    )
    # the object itself; None, True, classes, functions, modules
    IDENTITY = Row(
        name="identity",
        subject="object",
        writer=_identity,
        step=lambda reader, source, expected: _identity_step(Op.IDENTITY, reader, expected),
        cls=type,
        expects_object=True,
        actual=_actual_object,
        advice="Pass the same function, class or flag in each call instead of a new one.",
        advice_for=for_object,
    )
    # an int, float, complex, str, bytes or nested tuple: same type, and equal (NaN equals NaN)
    EQUALS = Row(
        name="equals",
        subject="value of",
        writer=_equals,
        step=_equals_step,
        actual=lambda expected, actual: (
            f"{type(actual).__name__} " * (type(actual) is not type(expected)) + brief(actual)
        ),
        advice="Each value has a version: pass few values, or use them outside of the compiled function.",
        advice_for=for_number,
    )
    # TensorFacts
    TENSOR = Row(
        name="tensor",
        subject="tensor",
        writer=attribute_checks,
        cls=lambda facts: facts.cls,
        expected=lambda facts: facts.summary,
        actual=brief_difference,
        advice=SIZES_VARY,
        advice_for=for_tensor,
    )
    # an int
    LENGTH = Row(
        name="length",
        subject="length of",
        writer=_length,
        step=_length_step,
        actual=lambda _, actual: str(len(actual)),
        advice="Each length is compiled once where items are read: keep one, or stack them into one tensor.",
        advice_for=for_length,
    )
    # a tuple of the keys, in order
    DICT_KEYS = Row(
        name="dict keys",
        subject="keys of",
        writer=_dict_keys,
        step=_keys_step,
        expected=brief_list,
        actual=lambda _, actual: brief_list(actual),
        advice="All keys count where a dict is looped over or compared: keep the same ones, or read single keys.",
    )
    # a key that the mapping has
    HAS_KEY = Row(
        name="has key",
        subject="keys of",
        writer=_has_key,
        step=functools.partial(_key_step, Op.HAS_KEY),
        part=lambda key: key,
        expected=lambda key: f"{key!r} among them",
        actual=lambda _, actual: brief_list(actual),
        advice=ONE_KEY,
    )
    # a key that the mapping lacks
    MISSING_KEY = Row(
        name="missing key",
        subject="keys of",
        writer=functools.partial(_has_key, word="not in"),
        step=functools.partial(_key_step, Op.MISSING_KEY),
        part=lambda key: key,
        expected=lambda key: f"{key!r} not among them",
        actual=lambda key, actual: repr(key) + (f" and {len(actual) - 1} more" if len(actual) > 1 else ""),
        advice=ONE_KEY,
    )
    # a frozenset
    SET_ITEMS = Row(
        name="set items",
        subject="items of",
        writer=_set_items,
        expected=lambda items: brief_list(items, sort=True),
        actual=lambda _, actual: brief_list(actual, sort=True),
        advice="All items count where a set is looped over or compared: keep the same ones, or test single items.",
    )
    # a name that neither the instance's dictionary nor its class has
    MISSING_ATTR = Row(
        name="missing attribute",
        subject="attributes of",
        writer=_missing_attr,
        reads_dictionary=True,
        part=lambda name: name,
        expected=lambda name: f"no `{name}`",
        actual=_actual_attribute,
        advice=SAME_CLASS,
    )
    # a name that the instance's dictionary lacks (the class has it)
    NO_INSTANCE_ATTR = Row(
        name="not in instance",
        subject="attributes of",
        writer=_no_instance_attr,
        step=lambda reader, source, name: Step(Op.MISSING_KEY, 0, 0, name),
        reads_dictionary=True,
        part=lambda name: name,
        expected=lambda name: f"`{name}` from the class, not from the instance",
        actual=_actual_attribute,
        advice=SAME_CLASS,
    )
    # the name of a slot of the class; the slot is empty
    SLOT_EMPTY = Row(
        name="empty slot",
        subject="attributes of",
        writer=lambda reader, source, name: [
            f"{reader.constant(is_unset, 'is_unset')}({reader.read(source)}, {name!r})"
        ],
        expected=lambda name: f"no `{name}`",
        actual=lambda name, actual: f"`{name}` = {brief(object.__getattribute__(actual, name))}",
        advice=SAME_CLASS,
    )
    # (name, object): the lookup of the name on the class (a class source) returns the object
    CLASS_ATTR = Row(
        name="class attribute",
        subject="class attributes of",
        writer=_class_attr,
        expects_object=True,
        part=lambda pair: pair[0],
        expected=lambda pair: f"`{pair[0]}` to be {brief(pair[1])}",
        actual=_actual_class_attribute,
        advice=SAME_CLASS,
    )
    # (names, bases): the names in the dictionary of the class at the source, and its bases
    CLASS_NAMES = Row(
        name="class names",
        subject="names in class",
        writer=_class_names,
        expected=lambda content: f"the {len(content[0])} it had",
        actual=_actual_names,
        advice=SAME_CLASS,
    )
    # None; the source is the cell
    CELL_EMPTY = Row(
        name="empty cell",
        subject="variable",
        writer=lambda reader, source, _: [f"{reader.constant(is_empty, 'is_empty')}({reader.read(source)})"],
        expected=lambda _: "no value yet",
        actual=lambda _, cell: brief(cell.cell_contents),
        advice="Assign the closed-over variable before the first call.",
    )
    # a Source that holds the same object
    SAME_OBJECT = Row(
        name="same object",
        subject="object",
        writer=lambda reader, source, other: [f"{reader.read(source)} is {reader.read(other)}"],
        part=lambda other: other,
        others=lambda other: (other,),
        stage=7,
        expected=lambda other: f"the same object as `{other.display()}`",
        actual=lambda _, actual: "another object",
        advice=SEPARATE,
    )
    # tuple of Sources, none of which holds this object
    DISTINCT_OBJECTS = Row(
        name="distinct objects",
        subject="object",
        writer=_distinct_objects,
        part=lambda others: others,
        others=lambda others: others,
        stage=7,
        expected=lambda others: f"another object than {', '.join(f'`{other.display()}`' for other in others)}",
        actual=lambda _, actual: "the same object",
        advice=SEPARATE,
    )
    # True or False: the result of the source, a computed condition over numbers
    RELATION = Row(
        name="relation",
        subject="relation",
        # parenthesized, since the text may contain `or`
        writer=lambda reader, source, answer: [f"{'' if answer else 'not '}({reader.read(source)})"],
        stage=8,
        expected=lambda answer: "to hold" if answer else "not to hold",
        actual=lambda _, actual: "that it holds" if actual else "that it does not hold",
        advice="Each side of a condition is compiled once; no more follow.",
    )
    # GlobalState; the source is ignored
    GLOBAL_STATE = Row(
        name="global state",
        subject="global state",
        writer=_global_state,
        ignores_source=True,
        stage=3,
        expected=lambda state: state.summary,
        actual=lambda expected, _: changed_settings(expected),
        advice="Call it in the same grad mode, autocast, default dtype and number of threads.",
    )
    # the backend and code-changing options of the entry; the source is ignored. Nothing is written: the dispatcher
    # considers only entries of the backend in force (`Entry.backend_key`).
    BACKEND = Row(
        name="backend",
        subject="backend",
        writer=lambda reader, source, _: [],
        ignores_source=True,
        stage=0,
        expected=str,
        actual=lambda _, actual: str(actual),
        advice="Choose the settings before the first call, or with compile(options=...).",
    )

    # Members are compared by identity, so the hash of an object suffices. Enum's own is a slow Python function.
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return str(self)


@record(frozen=True)
class Guard:
    """A condition for reuse of a compiled entry: the value at `source` matches `expected` in the sense of `kind`."""

    #: the source of the guarded value
    source: Source
    kind: GuardKind
    #: the expected value; see `GuardKind`
    expected: Any = None
    #: the user's line that needs the guard
    where: UserLocation | None = None

    def __hash__(self) -> int:
        return hash((self.source, self.kind))

    def conditions(self, reader: Reader) -> list[str]:
        """Writes the conditions, all of which hold if the guard holds."""
        return self.kind.value.writer(reader, self.source, self.expected)

    def sources(self) -> tuple[Source, ...]:
        """Returns the sources that the guard reads."""
        return (self.source, *self.kind.value.others(self.expected))

    def subject(self) -> str:
        """Names the subject of the guard, such as ``tensor `x` ``."""
        words = self.kind.value.subject
        if self.kind.value.ignores_source:
            return words
        shown = self.source.display()  # a globals dictionary has no name
        return f"{words} `{shown}`" if shown else f"{words} the module's globals"

    def expectation(self) -> str:
        """Describes the expected value."""
        return self.kind.value.expected(self.expected)

    def advice(self, actual: object) -> str:
        """Returns a fix for a program in which the value changes to `actual`."""
        return self.kind.value.advice_for(self.source, self.expected, actual) or self.kind.value.advice


def reader_of(guards: Iterable[Guard], names: Namespace, read_values: ReadValues | None = None) -> Reader:
    """Returns a reader that uses the classes and objects which the guards fix."""
    reader = Reader(names, read_values)
    for guard in guards:
        if guard.kind.value.cls is not None:
            reader.classes[guard.source] = guard.kind.value.cls(guard.expected)
        if guard.kind is GuardKind.IDENTITY:
            reader.objects[guard.source] = guard.expected
        if type(guard.source) is Constant and isinstance(guard.source.value, type):
            reader.held.add(id(guard.source.value))
    return reader
