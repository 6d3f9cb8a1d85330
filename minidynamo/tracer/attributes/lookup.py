"""Owns reading, finding and writing attributes: the tables of lookups per kind of value, and the error messages.

A handler of `registry.py` comes first. The usual order of each kind is not here, but in the other files of this folder.
Guards check each place where an attribute was found, and each place where it was missing."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from minidynamo.compat import PY313, name_in_errors
from minidynamo.errors import an
from minidynamo.tracer.attributes.binding import built_in, or_getattr
from minidynamo.tracer.frames.exceptions import without_message
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.fix_hints import CHANGE_OUTSIDE
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import SuperVariable
from minidynamo.variables.objects import ClassVariable, ObjectVariable, PythonModuleVariable

# lookup(tx, obj, name) -> tracker, or None if the attribute is missing.
Lookup = Callable[[Tracer, Any, str], VariableTracker | None]
# write(tx, obj, name, value); None deletes.
Writer = Callable[[Tracer, Any, str, VariableTracker | None], None]
L = TypeVar("L", bound=Lookup)
W = TypeVar("W", bound=Writer)

_LOOKUPS: dict[type[VariableTracker], Lookup] = {}
_WRITERS: dict[type[VariableTracker], Writer] = {}


def looks_up(*trackers: type[VariableTracker]) -> Callable[[L], L]:
    """Registers the decorated function to find attributes of these kinds of values."""

    def register(lookup: L) -> L:
        _LOOKUPS.update(dict.fromkeys(trackers, lookup))
        return lookup

    return register


def writes(*trackers: type[VariableTracker]) -> Callable[[W], W]:
    """Registers the decorated function to write and delete attributes of these kinds of values."""

    def register(write: W) -> W:
        _WRITERS.update(dict.fromkeys(trackers, write))
        return write

    return register


def read_attribute(tx: Tracer, obj: VariableTracker, name: str) -> VariableTracker:
    """Returns `obj.name`; raises AttributeError natively if missing."""
    found = find_attribute(tx, obj, name)
    if found is None:
        raise_no_attribute(tx, obj, name)
    return found


def read_lazy(tx: Tracer, obj: VariableTracker, name: str) -> VariableTracker:
    """Returns `obj.name` without realizing the value, for a caller that only moves it."""
    found = find_lazy(tx, obj, name)
    if found is None:
        raise_no_attribute(tx, obj, name)
    return found


def raise_no_attribute(tx: Tracer, obj: VariableTracker, name: str) -> NoReturn:
    """Raises the AttributeError of a failed lookup."""
    if isinstance(obj, PythonModuleVariable):
        find_attribute(tx, obj, "__name__")  # the message contains it
        raise_like(tx, lambda: getattr(obj.value, name), obj)
    if isinstance(obj, ClassVariable):
        subject = f"type object {name_in_errors(obj.value)!r}"
    elif isinstance(obj, SuperVariable):
        subject = "'super' object"
    else:
        subject = f"{_class_name_in_error(obj.python_type, name)!r} object"
    message = f"{subject} has no attribute {name!r}"
    tx.raises(AttributeError(message), exact=True, name=ConstantVariable(name), obj=obj)


def raise_like(tx: Tracer, act: Callable[[], object], obj: VariableTracker) -> NoReturn:
    """Raises the AttributeError that `act` raises for a similar object, or one without a message."""
    try:
        act()
    except AttributeError as error:
        owner = ConstantVariable(None) if error.name is None else obj
        tx.raises(AttributeError(str(error)), exact=True, name=ConstantVariable(error.name), obj=owner)
    tx.raises(without_message(AttributeError))


def _class_name_in_error(cls: type, name: str) -> str:
    """Returns the class name in the error message; since 3.13 with its module if a slot is empty."""
    is_slot = isinstance(inspect.getattr_static(cls, name, None), types.MemberDescriptorType)
    if not is_slot or not PY313:
        return name_in_errors(cls)
    in_module = "" if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}."
    return f"{in_module}{cls.__qualname__}"


def find_attribute(tx: Tracer, obj: VariableTracker, name: str) -> VariableTracker | None:
    """Returns `obj.name`; None if the lookup would raise AttributeError, with a guard."""
    found = find_lazy(tx, obj, name)
    return None if found is None else found.realize()


def find_lazy(tx: Tracer, obj: VariableTracker, name: str) -> VariableTracker | None:
    """Returns the result of `find_attribute` without realizing the value, for a caller that only moves it."""
    handler = registry.ATTRIBUTES.get(type(obj))
    found = handler(tx, obj, name) if handler is not None else None
    if found is not None:
        return found
    lookup = _LOOKUPS.get(type(obj))
    if lookup is None:
        return or_getattr(tx, obj, obj.python_type, name, lambda: built_in(tx, obj, name))
    return lookup(tx, obj, name)


def write_attribute(tx: Tracer, obj: VariableTracker, name: str, value: VariableTracker | None) -> None:
    """Executes `obj.name = value`, or `del obj.name` for None; the rules of the class come first."""
    if value is not None and not isinstance(obj, ObjectVariable):  # objects store lazy values
        value = value.realize()
    _WRITERS.get(type(obj), cannot_write)(tx, obj, name, value)


def cannot_write(tx: Tracer, obj: VariableTracker, name: str, value: VariableTracker | None) -> NoReturn:
    """Breaks the graph; Python does the write."""
    tx.break_graph(
        "MD206", f"writing `{name}` of {an(obj.python_type.__name__)} cannot be captured", fix=CHANGE_OUTSIDE
    )


def store_attribute(tx: Tracer, obj: VariableTracker, name: str, value: VariableTracker | None) -> None:
    """Records an attribute write that runs no user code."""
    if value is not None:
        tx.side_effects.set_attr(obj, sys.intern(name), value)
    else:
        if find_attribute(tx, obj, name) is None:
            tx.raises(without_message(AttributeError))
        tx.side_effects.delete_attr(obj, name)
