"""Owns attributes found on a class: the order of lookup, binding to an instance, and the guards.

Instance dictionaries are not here (`instances.py`)."""

from __future__ import annotations

import collections
import functools
import inspect
import types
import weakref
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import torch

from minidynamo.compat import VERSION_INFO
from minidynamo.errors import an
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Constant, Item, Source
from minidynamo.tracer.frames.exceptions import catch_raised
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records.constants import is_constant_value
from minidynamo.tracer.records.immutable_classes import ISO_CALENDAR_DATE
from minidynamo.tracer.trace_rules import is_library_value, is_trusted_class, is_trusted_module
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import (
    BoundBuiltin,
    BuiltinVariable,
    FunctionVariable,
    MethodVariable,
    NestedFunctionVariable,
)
from minidynamo.variables.containers import TupleVariable

MISSING = object()
FIELD: type = type(vars(collections.namedtuple("FIELD", "name"))["name"])  # the descriptor of a namedtuple's field
TYPE_OF = object.__dict__["__class__"]
FUNCTIONS = (FunctionVariable, NestedFunctionVariable)
# Plain functions, functions with a cache, and functions written in Cython.
_BECOME_METHODS = (types.FunctionType, type(functools.lru_cache(int)), type(np.random.Generator.random))
_CONTAINERS = (tuple, list, dict, set, frozenset, deque)


def is_user_code(tx: Tracer) -> bool:
    """Returns whether the user's own code is running, not a library function.

    Only user code reads attributes that a program has added to objects of libraries."""
    return not is_trusted_module(tx.frames[-1].namespace.get("__name__"))


def lookup_on_class(cls: type, name: str, skipped: Collection[type] = ()) -> tuple[Any, type | None]:
    """Returns an attribute and the class or base that defines it, or MISSING and None; ignores classes in `skipped`."""
    for owner in cls.__mro__:
        if name in owner.__dict__ and owner not in skipped:
            return owner.__dict__[name], owner
    return MISSING, None


def class_has(cls: type, name: str) -> bool:
    """Returns whether instances of `cls` have the special method: `hasattr(cls, name)` would also ask the metaclass."""
    found, owner = lookup_on_class(cls, name)
    return owner is not None and found is not None


def is_data_descriptor(found: Any) -> bool:
    """Returns whether the attribute takes precedence over the instance's dictionary."""
    return hasattr(type(found), "__set__") or hasattr(type(found), "__delete__")


def is_plain_setter(found: object, special: str) -> bool:
    """Returns whether this is `object.__setattr__` or `__delattr__`, or an equivalent method of a built-in class."""
    return isinstance(found, types.WrapperDescriptorType) and found.__name__ == special


def guard_class_attribute(tx: Tracer, cls: type, owner: type, name: str, value: object) -> None:
    """Guards an attribute found on a class, unless all classes searched belong to libraries, which programs do not
    change.

    The exception is an attribute that programs do replace in a library: the `forward` of torch's modules. If the
    attribute is an instance of a user's class, that class must neither become a descriptor class nor cease to be a
    descriptor class."""
    if not is_trusted_class(type(value)):
        tx.wrap(type(value), Constant(type(value), type(value).__name__))
    searched = cls.__mro__[: cls.__mro__.index(owner) + 1]
    if not all(is_trusted_class(base) for base in searched):
        tx.guard(Constant(cls, cls.__name__), GuardKind.CLASS_ATTR, (name, value))
    elif name == "forward" and issubclass(cls, torch.nn.Module):
        tx.guard(Attr(Constant(cls, cls.__name__), name), GuardKind.IDENTITY, value)


def guard_found_on_class(tx: Tracer, cls: type, owner: type, name: str, found: object) -> None:
    """Guards that a lookup still finds this attribute on the class `owner`.

    The names in all classes have guards already. The value of a constant or container is guarded at each read; here a
    guard on the type is enough, so that no descriptor replaces it."""
    if not is_constant_value(found) and type(found) not in _CONTAINERS:
        guard_class_attribute(tx, cls, owner, name, found)
    elif not is_trusted_class(owner):
        tx.guard(class_source(owner, name), GuardKind.TYPE, type(found))


def class_source(owner: type, name: str) -> Source:
    """Returns the source of an attribute in the dictionary of a class."""
    return Item(Attr(Constant(owner, owner.__name__), "__dict__"), name)


def overrides_class(cls: type) -> bool:
    """Returns whether instances define their own `__class__`, as mock objects and proxies do."""
    if isinstance(lookup_on_class(cls, "__getattribute__")[0], types.FunctionType) or cls in weakref.ProxyTypes:
        return True
    return lookup_on_class(cls, "__class__")[0] is not TYPE_OF


def class_of(tx: Tracer, obj: VariableTracker) -> VariableTracker:
    """Returns `type(obj)`; the class of every tracked value has a guard already."""
    cls = obj.python_type
    return tx.wrap(cls, Constant(cls, cls.__name__))


def built_in(tx: Tracer, obj: VariableTracker, name: str) -> VariableTracker | None:
    """Returns an attribute of a value without attributes of its own, found on the class; None if missing."""
    cls = obj.python_type
    if name == "__class__":
        return class_of(tx, obj)
    found, owner = lookup_on_class(cls, name)
    if owner is None:
        return None
    guard_class_attribute(tx, cls, owner, name, found)  # the class of a namedtuple is the user's
    if inspect.isgetsetdescriptor(found) or inspect.ismemberdescriptor(found):
        return read_built_in_descriptor(tx, found, obj, cls, name)
    return bind(tx, found, owner, obj, cls, name)


def or_getattr(
    tx: Tracer, obj: VariableTracker, cls: type, name: str, find: Callable[[], VariableTracker | None]
) -> VariableTracker | None:
    """Returns the result of `find`; if it is None or `find` raises AttributeError, calls the `__getattr__` of `cls`."""
    if not isinstance(lookup_on_class(cls, "__getattr__")[0], types.FunctionType):
        return find()
    found = catch_raised(AttributeError, find, _ignore)
    return call_getattr(tx, obj, cls, name) if found is None else found


def _ignore(error: VariableTracker) -> None:
    pass


def call_getattr(tx: Tracer, obj: VariableTracker, cls: type, name: str) -> VariableTracker:
    """Calls the `__getattr__` of `cls`."""
    fallback, owner = lookup_on_class(cls, "__getattr__")
    assert owner is not None
    guard_class_attribute(tx, cls, owner, "__getattr__", fallback)
    getter = bind(tx, fallback, owner, obj, cls, "__getattr__")
    assert getter is not None
    return tx.call(getter, [ConstantVariable(name)], lazy=True)


def bind(
    tx: Tracer, found: Any, owner: type, receiver: VariableTracker | None, cls: type, name: str
) -> VariableTracker | None:
    """Returns the value of an attribute found on a class, as read through an instance, or through the class if
    `receiver` is None."""
    source = Constant(found, name) if is_trusted_class(owner) and is_library_value(found) else class_source(owner, name)
    kind = type(found)  # `found.__class__` might run its `__getattribute__`
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
        arguments = [instance, tx.wrap(cls, Constant(cls, cls.__name__))]
        return tx.call_method(tx.wrap(found, source), "__get__", arguments, lazy=True)
    if receiver is None:
        return tx.wrap(found, source)
    if issubclass(kind, _BECOME_METHODS):
        return MethodVariable(tx.wrap(found, source), receiver)
    if issubclass(kind, types.MethodDescriptorType | types.WrapperDescriptorType):
        if found.__name__ == name:
            return BoundBuiltin(receiver, name)
        return MethodVariable(tx.wrap(found, source), receiver)  # a method under the name of a different method
    if getter_owner is None:
        return tx.wrap(found, source)
    if issubclass(kind, property):
        return tx.call(tx.wrap(found.fget, Attr(source, "fget")), [receiver], lazy=True)
    return read_built_in_descriptor(tx, found, receiver, cls, name)


def read_built_in_descriptor(
    tx: Tracer, found: Any, receiver: VariableTracker, cls: type, name: str
) -> VariableTracker | None:
    """Returns a field of a namedtuple or of torch.return_types, which is an item of the tuple; breaks the graph for any
    other descriptor."""
    if issubclass(cls, torch.Tensor) and hasattr(torch.Tensor, name):  # `super().shape` of a library's class
        return tx.call(BuiltinVariable(found.__get__), [receiver])
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
            return receiver.items.lazy_at(position)
    tx.break_graph("MD206", f"the attribute `{name}` of {an(cls.__name__)} cannot be captured")
