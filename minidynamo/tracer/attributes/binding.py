"""Owns what is found on a class: where the lookup looks, what it gives through an instance, and the guards on it.

It does not know of instances' own dictionaries; `instances.py` does.
"""

from __future__ import annotations

import collections
import functools
import inspect
import types
import weakref
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

import torch

from minidynamo.compat import VERSION_INFO
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Constant, Item, Source
from minidynamo.tracer.frames.exceptions import caught
from minidynamo.tracer.lazy.lazy_containers import lazy_item
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records.constants import is_constant_value
from minidynamo.tracer.records.copies import ISO_CALENDAR_DATE
from minidynamo.tracer.trace_rules import is_library_value, is_trusted_class, is_trusted_module
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import (
    BoundBuiltin,
    BuiltinVariable,
    FunctionVariable,
    MethodVariable,
    NestedFunctionVariable,
)
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import TupleVariable

MISSING = object()
FIELD: type = type(vars(collections.namedtuple("FIELD", "name"))["name"])  # how a namedtuple finds its items
TYPE_OF = object.__dict__["__class__"]
FUNCTIONS = (FunctionVariable, NestedFunctionVariable)
# Functions, and functions behind a cache.
_BECOME_METHODS = (types.FunctionType, type(functools.lru_cache(int)))
_CONTAINERS = (tuple, list, dict, set, frozenset, deque)


def asked_by_program(tx: Tracer) -> bool:
    """Whether the program itself is running, not a function of a library: it may use attributes that it has added to
    objects of libraries, which the libraries do not know."""
    return not is_trusted_module(tx.frames[-1].namespace.get("__name__"))


def lookup_on_class(cls: type, name: str, passed: Collection[type] = ()) -> tuple[Any, type | None]:
    """What the class or its bases, but for those in `passed`, hold under `name` and which of them does, or MISSING."""
    for owner in cls.__mro__:
        if name in owner.__dict__ and owner not in passed:
            return owner.__dict__[name], owner
    return MISSING, None


def is_data_descriptor(found: Any) -> bool:
    """Whether it takes precedence over the instance's dictionary."""
    return hasattr(type(found), "__set__") or hasattr(type(found), "__delete__")


def is_plain_setter(found: object, special: str) -> bool:
    """Whether it is `object.__setattr__` or `__delattr__`, or a built-in class's own, which do the same."""
    return isinstance(found, types.WrapperDescriptorType) and found.__name__ == special


def guard_class_attribute(tx: Tracer, cls: type, owner: type, name: str, value: object) -> None:
    """Guard what was found on a class, unless only library classes had a say, which nobody changes.

    The exception is what programs do change in a library: the `forward` of one of torch's modules. A class of the
    program's whose instance was found must not become one of descriptors, nor cease to be one.
    """
    if not is_trusted_class(type(value)):
        tx.wrap(type(value), Constant(type(value), type(value).__name__))
    passed = cls.__mro__[: cls.__mro__.index(owner) + 1]
    if not all(is_trusted_class(base) for base in passed):
        tx.guard(Constant(cls, cls.__name__), GuardKind.CLASS_ATTR, (name, value))
    elif name == "forward" and issubclass(cls, torch.nn.Module):
        tx.guard(Attr(Constant(cls, cls.__name__), name), GuardKind.IDENTITY, value)


def guard_found_on_class(tx: Tracer, cls: type, owner: type, name: str, found: object) -> None:
    """Guard that an attribute is found where it was. The names in all classes are guarded, and the value of a constant
    or a container is where it is read: here it matters only that it does not become a descriptor."""
    if not is_constant_value(found) and type(found) not in _CONTAINERS:
        guard_class_attribute(tx, cls, owner, name, found)
    elif not is_trusted_class(owner):
        tx.guard(class_source(owner, name), GuardKind.TYPE, type(found))


def class_source(owner: type, name: str) -> Source:
    """Where an attribute that was found on a class lives."""
    return Item(Attr(Constant(owner, owner.__name__), "__dict__"), name)


def claims_class(cls: type) -> bool:
    """Whether instances say themselves what their `__class__` is, as mock objects and proxies do."""
    if isinstance(lookup_on_class(cls, "__getattribute__")[0], types.FunctionType) or cls in weakref.ProxyTypes:
        return True
    return lookup_on_class(cls, "__class__")[0] is not TYPE_OF


def class_of(tx: Tracer, obj: VariableTracker) -> VariableTracker:
    """`type(obj)`; the class of every tracked value is guarded already."""
    cls = obj.python_type
    return tx.wrap(cls, Constant(cls, cls.__name__))


def built_in(tx: Tracer, obj: VariableTracker, name: str) -> VariableTracker | None:
    """What a value has whose attributes are those of its class; None when there is no such attribute."""
    cls = obj.python_type
    if name == "__class__":
        return class_of(tx, obj)
    found, owner = lookup_on_class(cls, name)
    if owner is None:
        return None
    guard_class_attribute(tx, cls, owner, name, found)  # a namedtuple's class is the program's
    if inspect.isgetsetdescriptor(found) or inspect.ismemberdescriptor(found):
        return read_built_in_descriptor(tx, found, obj, cls, name)
    return bind(tx, found, owner, obj, cls, name)


def or_getattr(
    tx: Tracer, obj: VariableTracker, cls: type, name: str, find: Callable[[], VariableTracker | None]
) -> VariableTracker | None:
    """What `find` gives; where it gives nothing or raises AttributeError, what the `__getattr__` of `cls` does."""
    if not isinstance(lookup_on_class(cls, "__getattr__")[0], types.FunctionType):
        return find()
    found = caught(AttributeError, find, _ignore)
    return call_getattr(tx, obj, cls, name) if found is None else found


def _ignore(error: VariableTracker) -> None:
    pass


def call_getattr(tx: Tracer, obj: VariableTracker, cls: type, name: str) -> VariableTracker:
    """What the `__getattr__` that `cls` has gives."""
    fallback, owner = lookup_on_class(cls, "__getattr__")
    assert owner is not None
    guard_class_attribute(tx, cls, owner, "__getattr__", fallback)
    getter = bind(tx, fallback, owner, obj, cls, "__getattr__")
    assert getter is not None
    return tx.call(getter, [ConstantVariable(name)], lazy=True)


def bind(
    tx: Tracer, found: Any, owner: type, receiver: VariableTracker | None, cls: type, name: str
) -> VariableTracker | None:
    """What reading an attribute gives that was found on a class, through an instance (or the class, without one)."""
    source = Constant(found, name) if is_trusted_class(owner) and is_library_value(found) else class_source(owner, name)
    kind = type(found)  # asking the object itself might run its `__getattribute__`
    if issubclass(kind, staticmethod):
        return tx.wrap(found.__func__, Attr(source, "__func__"))
    if issubclass(kind, classmethod):
        return MethodVariable(
            tx.wrap(found.__func__, Attr(source, "__func__")), tx.wrap(cls, Constant(cls, cls.__name__))
        )
    if issubclass(kind, types.ClassMethodDescriptorType):
        return BuiltinVariable(getattr(cls, name), source=Attr(Constant(cls, cls.__name__), name))
    getter, getter_owner = lookup_on_class(kind, "__get__")
    if isinstance(getter, types.FunctionType):
        instance = receiver or ConstantVariable(None)
        given = [instance, tx.wrap(cls, Constant(cls, cls.__name__))]
        return tx.call_method(tx.wrap(found, source), "__get__", given, lazy=True)
    if receiver is None:
        return tx.wrap(found, source)
    if issubclass(kind, _BECOME_METHODS):
        return MethodVariable(tx.wrap(found, source), receiver)
    if issubclass(kind, types.MethodDescriptorType | types.WrapperDescriptorType):
        if found.__name__ == name:
            return BoundBuiltin(receiver, name)
        return MethodVariable(tx.wrap(found, source), receiver)  # one method under the name of another
    if getter_owner is None:
        return tx.wrap(found, source)
    if issubclass(kind, property):
        return tx.call(tx.wrap(found.fget, Attr(source, "fget")), [receiver], lazy=True)
    return read_built_in_descriptor(tx, found, receiver, cls, name)


def read_built_in_descriptor(
    tx: Tracer, found: Any, receiver: VariableTracker, cls: type, name: str
) -> VariableTracker | None:
    """Fields of namedtuples and of torch.return_types are positions in the tuple."""
    if cls is type(VERSION_INFO) and name in cls.__match_args__ and isinstance(receiver, TupleVariable):
        return receiver.items[cls.__match_args__.index(name)]
    if isinstance(receiver, TupleVariable) and issubclass(cls, tuple):
        fields = getattr(cls, "_fields", None)
        positions: Any = range(getattr(cls, "n_sequence_fields", 0) if fields is None else len(fields))
        plain: Any = tuple.__new__(cls, positions) if fields is not None else None
        if plain is None:
            plain = cls(0, 1, 2) if cls is ISO_CALENDAR_DATE else cls(positions)
        position = found.__get__(plain, cls)
        if isinstance(position, int):
            return lazy_item(receiver.items, position)
    tx.break_graph("MD206", f"the attribute `{name}` of a {cls.__name__} cannot be captured")
