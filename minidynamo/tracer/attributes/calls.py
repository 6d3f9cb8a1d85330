"""Owns `getattr`, `hasattr`, `setattr`, `delattr`, and the equivalent methods of `object`.

The lookup itself is not here, but in the other files of this folder."""

from __future__ import annotations

from minidynamo.errors import an
from minidynamo.tracer.attributes.instances import (
    guard_missing,
)
from minidynamo.tracer.attributes.lookup import (
    find_lazy,
    raise_no_attribute,
    read_attribute,
    read_lazy,
    write_attribute,
)
from minidynamo.tracer.attributes.objects import default_lookup, default_write
from minidynamo.tracer.frames.exceptions import catch_raised
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.objects import (
    ObjectVariable,
)


def _name(tx: Tracer, name: VariableTracker) -> str:
    try:
        text = as_constant(name)
    except NotConstant:
        text = None
    if not isinstance(text, str):
        tx.raises(TypeError("attribute name must be string"))
    return text


@registry.function(getattr)
@registry.accepts_lazy("default")
def _getattr(
    tx: Tracer, obj: VariableTracker, name: VariableTracker, default: VariableTracker | None = None, /
) -> VariableTracker:
    if default is None:
        return read_lazy(tx, obj, _name(tx, name))
    return _attribute_or_none(tx, obj, _name(tx, name)) or default


@registry.function(hasattr)
def _hasattr(tx: Tracer, obj: VariableTracker, name: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(_attribute_or_none(tx, obj, _name(tx, name)) is not None)


def _attribute_or_none(tx: Tracer, obj: VariableTracker, name: str) -> VariableTracker | None:
    """Returns the attribute; None also if a user's `__getattr__` or property raises AttributeError."""
    missing: list[VariableTracker] = []
    found = catch_raised(AttributeError, lambda: find_lazy(tx, obj, name), missing.append)
    return None if missing else found


@registry.function(setattr)
@registry.accepts_lazy("value")
def _setattr(tx: Tracer, obj: VariableTracker, name: VariableTracker, value: VariableTracker, /) -> VariableTracker:
    write_attribute(tx, obj, _name(tx, name), value)
    return ConstantVariable(None)


@registry.function(delattr)
def _delattr(tx: Tracer, obj: VariableTracker, name: VariableTracker, /) -> VariableTracker:
    write_attribute(tx, obj, _name(tx, name), None)
    return ConstantVariable(None)


@registry.method(object, "__setattr__", "__delattr__")
@registry.accepts_lazy("value")
def _object_setattr(
    tx: Tracer, obj: VariableTracker, name: VariableTracker, value: VariableTracker | None = None, /
) -> VariableTracker:
    if not isinstance(obj, ObjectVariable):
        tx.break_graph("MD206", f"writing an attribute of {an(obj.python_type.__name__)} cannot be captured")
    default_write(tx, obj, _name(tx, name), value)
    return ConstantVariable(None)


@registry.method(object, "__getattribute__")
def _object_getattribute(tx: Tracer, obj: VariableTracker, name: VariableTracker, /) -> VariableTracker:
    if not isinstance(obj, ObjectVariable):
        return read_attribute(tx, obj, _name(tx, name))
    found = default_lookup(tx, obj, _name(tx, name))
    if found is None:
        guard_missing(tx, obj, _name(tx, name))
        raise_no_attribute(tx, obj, _name(tx, name))
    return found
