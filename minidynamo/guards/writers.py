"""Owns the text of each guard kind but tensors and global state: one small function per kind, in one table.

It does not order or combine guards; `check.py` does. Every condition is safe to evaluate on any value for which the
guards on shorter sources hold: it runs no code of the user's.
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
from minidynamo.guards.deaths import LIVING, Lost, loses_unnoticed
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.reader import Reader
from minidynamo.guards.source import HOOK_TABLES, TENSOR_FACTS, Attr, InstanceAttr, Referent, Source, key_expression

# Classes whose methods read a container without running overrides; the first one in an object's MRO is used.
CONTAINERS: tuple[type, ...] = (
    collections.OrderedDict,
    dict,
    list,
    tuple,
    set,
    frozenset,
    collections.deque,
)

# Type flag of classes whose attributes nobody can change.
_IMMUTABLE_TYPE = 1 << 8


def same_value(found: Any, expected: Any) -> bool:
    """Whether two constants are alike to any program: in type all the way down, in value, and in the sign of a zero."""
    cls = type(expected)
    if type(found) is not cls:
        return False
    if issubclass(cls, np.generic):
        return bool(found.tobytes() == expected.tobytes())
    if issubclass(cls, datetime.datetime | datetime.time | datetime.timezone):  # equal ones may have other zones
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
    """Whether a closure cell holds nothing."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def class_attribute(cls: type, name: str) -> object:
    """What a class or its bases hold under `name`, without running descriptors; raises KeyError."""
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    raise KeyError(name)


# Nobody else has this object, so that `value is not absent` reads the value and holds.
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
    """`found is expected`, without keeping a user's object alive. A dead reference gives None, which must not match."""
    if is_singleton(expected):
        return f"{found} is {expected!r}"
    name, weak = reader.reference(expected)
    return f"{found} is {name}() is not None" if weak else f"{found} is {name}"


def is_singleton(value: object) -> bool:
    """Whether `value` is the only one of its kind, which nobody has to keep alive."""
    return value is None or value is True or value is False or value is ...


def is_its_literal(value: object) -> bool:
    """Whether another value of the same class that equals `value` is the same number or text."""
    if type(value) is float:
        return value != 0 and math.isfinite(value)  # zeros have signs, NaN equals nothing
    return type(value) in (int, str, bytes)


def _equals(reader: Reader, guard: Guard) -> list[str]:
    expected = guard.expected
    cls = type(expected)
    if expected is None or cls is bool:
        return _identity(reader, guard)
    if isinstance(guard.source, TENSOR_FACTS):  # it is always of one class
        value = repr(expected) if cls is int else reader.constant(expected, cls.__name__)
        return [f"{reader.read(guard.source)} == {value}"]
    if is_its_literal(expected):
        is_type = (
            f"{reader.constant(type, 'type')}({reader.read(guard.source)}) is {reader.constant(cls, cls.__name__)}"
        )
        return [f"{is_type} and {reader.read(guard.source)} == {expected!r}"]
    value = key_expression(expected, reader.names) if cls is tuple else reader.constant(expected, cls.__name__)
    return [f"{reader.constant(same_value, 'same_value')}({reader.read(guard.source)}, {value})"]


def _container(reader: Reader, source: Source) -> tuple[type | None, bool]:
    """The class whose methods to use on the container at `source`, and whether the container is exactly of it."""
    cls = reader.class_of(source)
    if cls is None:
        return None, True
    owner = next((base for base in cls.__mro__ if base in CONTAINERS), None)
    return owner, owner is cls


def _method(reader: Reader, source: Source, builtin: str, method: str) -> str:
    """The text of `builtin(value)`, through the base class when the value's own class might override `method`."""
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
    """Whether the object behind a key, or a part of it, is not kept alive."""
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
    """Whether neither the class nor its bases hold `name`."""
    return all(name not in base.__dict__ for base in cls.__mro__)


def _slot_empty(reader: Reader, guard: Guard) -> list[str]:
    return [f"{reader.constant(is_unset, 'is_unset')}({reader.read(guard.source)}, {guard.expected!r})"]


def is_unset(value: object, slot: str) -> bool:
    """Whether a slot of the value's class holds nothing."""
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
    if bases != (object,):  # these nobody can replace
        texts.append(f"{cls_text}.__bases__ is {reader.constant(bases, 'bases')}")
    return texts


def _cell_empty(reader: Reader, guard: Guard) -> list[str]:
    return [f"{reader.constant(is_empty, 'is_empty')}({reader.read(guard.source)})"]


def _unnoticed_death(reader: Reader, guard: Guard) -> list[str]:
    if is_living(guard):
        return []  # it says something to the others
    if guard.expected and isinstance(guard.expected[0], Lost):
        return [last_reference(reader, guard, None)]
    return [unnoticed_deaths(reader.names, [lost_reference(reader, guard)])]


# What else than attributes a tensor may hold that dies with it.
_HELD_BY_TENSORS = {Lost.WITHOUT_HISTORY: "{}.grad is not None", Lost.BUT_HISTORY: "{}.retains_grad"}


def is_living(guard: Guard) -> bool:
    """Whether an UNNOTICED_DEATH guard says that something lives on."""
    return bool(guard.expected) and isinstance(guard.expected[0], Lost) and guard.expected[0] in LIVING


def last_reference(reader: Reader, guard: Guard, own: int | None, held: Sequence[str] = ()) -> str:
    """The check of a value that a frame lets go of: others hold it, too, or its death passes the expected check.

    The frame has one reference to it, or as many more as expected; the checks have `own`, unless nobody counts. What is
    `held` outlives it.
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
    """One check for all references that are lost: what only several of them hold dies with the last."""
    return f"{names.constant(loses_unnoticed, 'loses_unnoticed')}({', '.join(losses)})"


def lost_reference(reader: Reader, guard: Guard) -> str:
    """The owner and the key of what an UNNOTICED_DEATH guard is about."""
    if is_living(guard):
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
    """Nothing: the dispatcher only looks at entries of the backend in force (`Entry.backend_key`)."""
    return []


def _relation(reader: Reader, guard: Guard) -> list[str]:
    text = f"({reader.read(guard.source)})"  # it may be an alternative, among conditions that all must hold
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
