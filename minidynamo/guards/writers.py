"""Owns the text of each guard kind except tensors and global state: one small function per kind, in one table.

Does not order or combine guards; `check.py` does. Every condition is safe to evaluate on any value for which the guards
on shorter sources hold: it runs no user code.
"""

from __future__ import annotations

import collections
import datetime
import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from minidynamo.core.names import Namespace
from minidynamo.guards.deaths import SURVIVING, Lost, loses_unnoticed
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.reader import Reader
from minidynamo.guards.source import HOOK_TABLES, TENSOR_FACTS, Attr, InstanceAttr, Referent, Source, key_expression

# Classes whose methods read a container without running overrides; the first such class in the MRO is used.
CONTAINERS: tuple[type, ...] = (
    collections.OrderedDict,
    dict,
    list,
    tuple,
    set,
    frozenset,
    collections.deque,
)

# Type flag of classes whose attributes cannot be changed.
_IMMUTABLE_TYPE = 1 << 8


def same_value(found: Any, expected: Any) -> bool:
    """Returns whether no program can distinguish two constants: same types at all levels, same values, same signs of
    zeros.
    """
    cls = type(expected)
    if type(found) is not cls:
        return False
    if issubclass(cls, np.generic):
        return bool(found.tobytes() == expected.tobytes())
    if issubclass(cls, datetime.datetime | datetime.time | datetime.timezone):  # equal times may have different zones
        return repr(found) == repr(expected)
    if issubclass(cls, float):
        same_sign = math.copysign(1, found) == math.copysign(1, expected)
        return (found == expected and same_sign) or (found != found and expected != expected)
    if issubclass(cls, complex):
        return same_value(found.real, expected.real) and same_value(found.imag, expected.imag)
    if issubclass(cls, tuple):
        return tuple.__len__(found) == len(expected) and all(map(same_value, tuple(found), expected))
    if issubclass(cls, (frozenset, set)):
        return bool(found == expected and {(type(k), k) for k in found} == {(type(k), k) for k in expected})
    return bool(found == expected)


def is_empty(cell: Any) -> bool:
    """Returns whether a closure cell is empty."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def class_attribute(cls: type, name: str) -> object:
    """Looks up `name` in a class and its bases, without running descriptors; raises KeyError."""
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    raise KeyError(name)


# A unique object: `value is not absent` reads the value and is always true.
ABSENT = object()


def _present(reader: Reader, guard: Guard) -> list[str]:
    return [f"{reader.read(guard.source)} is not {reader.constant(ABSENT, 'absent')}"]


def _not_none(reader: Reader, guard: Guard) -> list[str]:
    return [f"{reader.read(guard.source)} is not None"]


def _type(reader: Reader, guard: Guard) -> list[str]:
    found = f"{reader.constant(type, 'type')}({reader.read(guard.source)})"
    return [_is(reader, found, guard.expected)]


def _identity(reader: Reader, guard: Guard) -> list[str]:
    return [_is(reader, reader.read(guard.source), guard.expected)]


def _is(reader: Reader, found: str, expected: object) -> str:
    """Writes `found is expected`, without keeping a user's object alive. A dead reference returns None, which must not
    match.
    """
    if is_singleton(expected):
        return f"{found} is {expected!r}"
    name, weak = reader.reference(expected)
    return f"{found} is {name}() is not None" if weak else f"{found} is {name}"


def is_singleton(value: object) -> bool:
    """Returns whether `value` is a singleton of Python, which lives forever."""
    return value is None or value is True or value is False or value is ...


def is_exact_literal(value: object) -> bool:
    """Returns whether an equal value of the same class is always the same number or text."""
    if type(value) is float:
        return value != 0 and math.isfinite(value)  # zeros have signs, NaN equals nothing
    return type(value) in (int, str, bytes)


def _equals(reader: Reader, guard: Guard) -> list[str]:
    expected = guard.expected
    cls = type(expected)
    if expected is None or cls is bool:
        return _identity(reader, guard)
    if isinstance(guard.source, TENSOR_FACTS):  # always of one class
        value = repr(expected) if cls is int else reader.constant(expected, cls.__name__)
        return [f"{reader.read(guard.source)} == {value}"]
    if is_exact_literal(expected):
        is_type = (
            f"{reader.constant(type, 'type')}({reader.read(guard.source)}) is {reader.constant(cls, cls.__name__)}"
        )
        return [f"{is_type} and {reader.read(guard.source)} == {expected!r}"]
    value = key_expression(expected, reader.names) if cls is tuple else reader.constant(expected, cls.__name__)
    return [f"{reader.constant(same_value, 'same_value')}({reader.read(guard.source)}, {value})"]


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


def _length(reader: Reader, guard: Guard) -> list[str]:
    source = guard.source
    is_hooks = isinstance(source, InstanceAttr) and source.name in HOOK_TABLES
    if guard.expected == 0 and (_container(reader, source)[1] and (is_hooks or reader.class_of(source) is not None)):
        return [f"not {reader.read(source)}"]
    return [f"{_method(reader, guard.source, reader.constant(len, 'len'), '__len__')} == {guard.expected!r}"]


def _dict_keys(reader: Reader, guard: Guard) -> list[str]:
    keys = _method(reader, guard.source, reader.constant(iter, "iter"), "__iter__")
    found = f"{reader.constant(tuple, 'tuple')}({keys})"
    expected = key_expression(tuple(guard.expected), reader.names)
    if all(type(key) is str for key in guard.expected):
        return [f"{found} == {expected}"]
    return [f"{reader.constant(same_value, 'same_value')}({found}, {expected})"]


def _has_key(reader: Reader, guard: Guard, word: str = "in") -> list[str]:
    owner, exact = _container(reader, guard.source)
    key = key_expression(guard.expected, reader.names)
    if owner is None or exact:
        return [f"{key} {word} {reader.read(guard.source)}"]
    negation = "not " if word == "not in" else ""
    return [f"{negation}{reader.constant(owner, owner.__name__)}.__contains__({reader.read(guard.source)}, {key})"]


def _missing_key(reader: Reader, guard: Guard) -> list[str]:
    return _has_key(reader, guard, "not in")


def _set_items(reader: Reader, guard: Guard) -> list[str]:
    found = f"{reader.constant(frozenset, 'frozenset')}({reader.read(guard.source)})"
    same = reader.constant(same_value, "same_value")
    if any(map(_refers, guard.expected)):
        items = key_expression(tuple(guard.expected), reader.names)
        return [f"{same}({found}, {reader.constant(frozenset, 'frozenset')}({items}))"]
    return [f"{same}({found}, {reader.constant(frozenset(guard.expected), 'items')})"]


def _refers(key: object) -> bool:
    """Returns whether a key, or an item of a tuple key, is referred to weakly."""
    return any(map(_refers, key)) if type(key) is tuple else isinstance(key, Referent)


def _no_instance_attr(reader: Reader, guard: Guard) -> list[str]:
    cls = reader.class_of(guard.source)
    if cls is not None and cls.__dictoffset__ == 0 and not issubclass(cls, threading.local):
        return []
    return [f"{guard.expected!r} not in {reader.read(Attr(guard.source, '__dict__'))}"]


def _missing_attr(reader: Reader, guard: Guard) -> list[str]:
    lines = _no_instance_attr(reader, guard)
    cls = reader.class_of(guard.source)
    if cls is not None:
        return lines + _class_lacks(reader, cls.__mro__, guard.expected)
    found = f"{reader.constant(type, 'type')}({reader.read(guard.source)})"
    return [*lines, f"{reader.constant(lacks_attribute, 'lacks_attribute')}({found}, {guard.expected!r})"]


def lacks_attribute(cls: type, name: str) -> bool:
    """Returns whether neither the class nor its bases have the attribute `name`."""
    return all(name not in base.__dict__ for base in cls.__mro__)


def _slot_empty(reader: Reader, guard: Guard) -> list[str]:
    return [f"{reader.constant(is_unset, 'is_unset')}({reader.read(guard.source)}, {guard.expected!r})"]


def is_unset(value: object, slot: str) -> bool:
    """Returns whether a slot of the value's class is empty."""
    try:
        object.__getattribute__(value, slot)
    except AttributeError:
        return True
    return False


def _class_lacks(reader: Reader, classes: tuple[type, ...], name: str) -> list[str]:
    changeable = [cls for cls in classes if not cls.__flags__ & _IMMUTABLE_TYPE]
    return [f"{name!r} not in {_class_dict(reader, cls)}" for cls in changeable]


def _class_dict(reader: Reader, cls: type) -> str:
    name, weak = reader.reference(cls)
    return f"{name}().__dict__" if weak else f"{name}.__dict__"


def _class_attr(reader: Reader, guard: Guard) -> list[str]:
    name, expected = guard.expected
    cls = reader.class_at(guard.source)
    owner = next((base for base in cls.__mro__ if name in base.__dict__), None) if cls is not None else None
    if cls is None or owner is None or owner.__dict__[name] is not expected:
        found = f"{reader.constant(class_attribute, 'class_attribute')}({reader.read(guard.source)}, {name!r})"
        return [_is(reader, found, expected)]
    lines = _class_lacks(reader, cls.__mro__[: cls.__mro__.index(owner)], name)
    if owner.__flags__ & _IMMUTABLE_TYPE:
        return lines
    return [*lines, _is(reader, f"{_class_dict(reader, owner)}[{name!r}]", expected)]


def _class_names(reader: Reader, guard: Guard) -> list[str]:
    names, bases = guard.expected
    cls = reader.class_at(guard.source)
    name, weak = (reader.read(guard.source), False) if cls is None else reader.reference(cls)
    cls_text = f"{name}()" if weak else name
    texts = [f"[*{cls_text}.__dict__] == {reader.constant([*names], 'class_names')}"]
    if bases != (object,):  # the base (object,) cannot be replaced
        texts.append(f"{cls_text}.__bases__ is {reader.constant(bases, 'bases')}")
    return texts


def _cell_empty(reader: Reader, guard: Guard) -> list[str]:
    return [f"{reader.constant(is_empty, 'is_empty')}({reader.read(guard.source)})"]


def _unnoticed_death(reader: Reader, guard: Guard) -> list[str]:
    if is_survivor(guard):
        return []  # the guard affects only other death checks
    if guard.expected and isinstance(guard.expected[0], Lost):
        return [last_reference(reader, guard, None)]
    return [unnoticed_deaths(reader.names, [lost_reference(reader, guard)])]


# Further objects, besides attributes, that may die with a tensor.
_HELD_BY_TENSORS = {Lost.WITHOUT_HISTORY: "{}.grad is not None", Lost.BUT_HISTORY: "{}.retains_grad"}


def is_survivor(guard: Guard) -> bool:
    """Returns whether an UNNOTICED_DEATH guard states that its object survives."""
    return bool(guard.expected) and isinstance(guard.expected[0], Lost) and guard.expected[0] in SURVIVING


def last_reference(reader: Reader, guard: Guard, own: int | None, held: Sequence[str] = ()) -> str:
    """Writes the check of a value dropped by the frame: either other references exist, or the expected check passes.

    The expected number of the frame's references is 1 + `more`; the checks hold `own` references, or None to skip the
    count. Objects in `held` survive.
    """
    lost, more, check = guard.expected
    names, value = reader.names, reader.read(guard.source)
    given = ", ".join([value, names.constant(Lost.ITSELF, "itself"), *held])
    text = f"{names.constant(check, check.__name__)}({given})"
    if own is None:
        return text
    references = names.constant(sys.getrefcount, "references")
    texts = [f"{references}({value}) > {2 + own + more}", text]
    if lost in _HELD_BY_TENSORS:
        count = names.constant(weakref.getweakrefcount, "count_references")
        texts.insert(1, f"not ({count}({value}) or {value}.__dict__ or {_HELD_BY_TENSORS[lost].format(value)})")
    return f"({' or '.join(texts)})"


def unnoticed_deaths(names: Namespace, losses: Iterable[str]) -> str:
    """Writes one check for all lost references: an object held by several of them dies with the last."""
    return f"{names.constant(loses_unnoticed, 'loses_unnoticed')}({', '.join(losses)})"


def lost_reference(reader: Reader, guard: Guard) -> str:
    """Returns the owner and the key of the reference in an UNNOTICED_DEATH guard."""
    if is_survivor(guard):
        (lives,) = guard.expected
        key = reader.constant(lives, lives.name.lower())
    elif guard.expected:
        key = key_expression(guard.expected[0], reader.names)
    else:
        here = Lost.KEY if isinstance(guard.source, Referent) else Lost.ITSELF
        what = here if guard.expected is None else Lost.EVERYTHING
        key = reader.constant(what, what.name.lower())
    return f"{reader.read(guard.source)}, {key}"


def _same_object(reader: Reader, guard: Guard) -> list[str]:
    return [f"{reader.read(guard.source)} is {reader.read(guard.expected)}"]


def _distinct_objects(reader: Reader, guard: Guard) -> list[str]:
    sources = [guard.source, *guard.expected]
    if len(sources) == 2:
        return [f"{reader.read(sources[0])} is not {reader.read(sources[1])}"]
    values = ", ".join(reader.read(source) for source in sources)
    identities = f"{{*{reader.constant(map, 'map')}({reader.constant(id, 'id')}, ({values}))}}"
    return [f"{reader.constant(len, 'len')}({identities}) == {len(sources)}"]


def _backend(reader: Reader, guard: Guard) -> list[str]:
    """Writes nothing: the dispatcher only considers entries of the backend in force (`Entry.backend_key`)."""
    return []


def _relation(reader: Reader, guard: Guard) -> list[str]:
    text = f"({reader.read(guard.source)})"  # parenthesized, since it may contain `or`
    return [text if guard.expected else f"not {text}"]


WRITERS: dict[GuardKind, Callable[[Reader, Guard], list[str]]] = {
    GuardKind.PRESENT: _present,
    GuardKind.NOT_NONE: _not_none,
    GuardKind.TYPE: _type,
    GuardKind.IDENTITY: _identity,
    GuardKind.EQUALS: _equals,
    GuardKind.LENGTH: _length,
    GuardKind.DICT_KEYS: _dict_keys,
    GuardKind.HAS_KEY: _has_key,
    GuardKind.MISSING_KEY: _missing_key,
    GuardKind.SET_ITEMS: _set_items,
    GuardKind.MISSING_ATTR: _missing_attr,
    GuardKind.NO_INSTANCE_ATTR: _no_instance_attr,
    GuardKind.SLOT_EMPTY: _slot_empty,
    GuardKind.CLASS_ATTR: _class_attr,
    GuardKind.CLASS_NAMES: _class_names,
    GuardKind.CELL_EMPTY: _cell_empty,
    GuardKind.UNNOTICED_DEATH: _unnoticed_death,
    GuardKind.SAME_OBJECT: _same_object,
    GuardKind.DISTINCT_OBJECTS: _distinct_objects,
    GuardKind.RELATION: _relation,
    GuardKind.BACKEND: _backend,
}
