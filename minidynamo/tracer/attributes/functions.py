"""Owns attributes of functions, nested functions, methods and built-in callables.

Calls are not here (`tracer/calls/call.py`)."""

from __future__ import annotations

import functools
import operator
import types

from minidynamo.compat import OpOverloadPacket
from minidynamo.core.defaults import follow_original
from minidynamo.core.directives import COMPILED, own_mark
from minidynamo.core.names import name_of
from minidynamo.errors import an
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Constant, Item
from minidynamo.tracer.attributes.binding import built_in, is_user_code
from minidynamo.tracer.attributes.lookup import (
    cannot_write,
    find_attribute,
    looks_up,
    raise_no_attribute,
    store_attribute,
    writes,
)
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records.constants import from_constant, keyword_key
from minidynamo.tracer.records.fix_hints import CHANGE_OUTSIDE
from minidynamo.tracer.records.side_effects import DELETED
from minidynamo.tracer.trace_rules import is_trusted_module
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import (
    BoundBuiltin,
    BuiltinVariable,
    FunctionVariable,
    MethodVariable,
    NestedFunctionVariable,
)
from minidynamo.variables.containers import DictVariable

# Fields of functions that programs replace as easily as attributes of their own.
_FUNCTION_NAMES = ("__name__", "__qualname__", "__module__", "__doc__", "__wrapped__")
_READABLE = frozenset(
    (
        "__name__",
        "__qualname__",
        "__module__",
        "__doc__",
        "__defaults__",
        "__kwdefaults__",
        "__dict__",
        "__annotations__",
    )
)


# Attributes that C functions compute anew at each read. Their `__module__` is not here: it can be replaced.
_NAMES_IN_C = ("__name__", "__qualname__", "__doc__")
_WRITTEN_IN_C = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_CACHED: type = type(functools.lru_cache(int))
_DEFAULTS = ("__defaults__", "__kwdefaults__")


def original_of(tx: Tracer, function: FunctionVariable) -> VariableTracker:
    """Returns the function that a compiled function, or another plain wrapper, runs."""
    if own_mark(function.value, COMPILED) is not None and not all(
        _has_original_defaults(tx, function, name) for name in _DEFAULTS
    ):
        what, why = f"{function.value.__name__}() has defaults of its own", "They were set on the compiled function."
        tx.break_graph("MD207", what, why=why, fix="Set the defaults of `__wrapped__`.")
    return _wrapped(tx, function)


def _wrapped(tx: Tracer, function: FunctionVariable) -> VariableTracker:
    source = Attr(function.source, "__wrapped__") if function.source else None
    return tx.wrap(function.value.__dict__["__wrapped__"], source)


def _has_original_defaults(tx: Tracer, function: FunctionVariable, name: str) -> bool:
    """Returns whether a compiled function has the same defaults as its original, with a guard."""
    defaults = getattr(function.value, name)
    if function.source is not None:
        tx.guard(Attr(function.source, name), GuardKind.IDENTITY, defaults)
    return follow_original(defaults)


@looks_up(FunctionVariable)
def _function(tx: Tracer, obj: FunctionVariable, name: str) -> VariableTracker | None:
    pending = tx.side_effects.attr(obj, name)
    if isinstance(pending, VariableTracker):
        return pending
    if name in _DEFAULTS and own_mark(obj.value, COMPILED) is not None and _has_original_defaults(tx, obj, name):
        return tx.getattr(_wrapped(tx, obj), name)
    if name == "__dict__" and any(tx.side_effects.attribute_history(obj)):
        tx.break_graph("MD206", "`__dict__` of a function is read whose attributes were written", fix=CHANGE_OUTSIDE)
    if name in _READABLE:
        return tx.wrap(getattr(obj.value, name), Attr(obj.source, name) if obj.source else None)
    if (table := _tracked_dict(tx, obj)) is not None and pending is not DELETED:
        found = table.items.get(keyword_key(name))
        return built_in(tx, obj, name) if found is None else found
    return built_in(tx, obj, name) if pending is DELETED else _stored(tx, obj, name) or built_in(tx, obj, name)


def _stored(tx: Tracer, obj: FunctionVariable | BuiltinVariable, name: str) -> VariableTracker | None:
    """Returns an attribute in the dictionary of a function.

    A missing attribute is guarded if a program may add it."""
    dict_source = Attr(obj.source or Constant(obj.value, name_of(obj.value)), "__dict__")
    if name in obj.value.__dict__:
        return tx.wrap(obj.value.__dict__[name], Item(dict_source, name))
    if is_user_code(tx) or not is_trusted_module(obj.value.__module__):
        tx.guard(dict_source, GuardKind.MISSING_KEY, name)
    return None


@writes(FunctionVariable)
def _write_function(tx: Tracer, obj: FunctionVariable, name: str, value: VariableTracker | None) -> None:
    table = _tracked_dict(tx, obj)
    if table is not None and value is not None and not name.startswith("__"):
        tx.call(operator.setitem, [table, ConstantVariable(name), value])
    elif table is not None or name.startswith("__"):
        cannot_write(tx, obj, name, value)
    else:
        store_attribute(tx, obj, name, value)


def _tracked_dict(tx: Tracer, function: FunctionVariable) -> DictVariable | None:
    """Returns the present `__dict__` of the function, if the program has read that dict."""
    known = tx.graph.tracker_of(function.value.__dict__)
    return known if isinstance(known, DictVariable) else None


@looks_up(NestedFunctionVariable)
def _nested_function(tx: Tracer, obj: NestedFunctionVariable, name: str) -> VariableTracker | None:
    if name in obj.attributes:
        return obj.attributes[name]
    if name == "__name__":
        return ConstantVariable(obj.code.co_name)
    if name == "__qualname__":
        return ConstantVariable(obj.qualname)
    if name == "__module__":
        return ConstantVariable(obj.namespace.get("__name__"))
    return built_in(tx, obj, name)


@writes(NestedFunctionVariable)
def _write_nested_function(
    tx: Tracer, function: NestedFunctionVariable, name: str, value: VariableTracker | None
) -> None:
    if name.startswith("__") and (value is None or name not in _FUNCTION_NAMES):
        cannot_write(tx, function, name, value)
    if value is not None:
        if name in ("__name__", "__qualname__") and not issubclass(value.python_type, str):
            tx.raises(TypeError(f"{name} must be set to a string object"), exact=True)
        function.attributes[name] = value
    elif name not in function.attributes:
        raise_no_attribute(tx, function, name)
    else:
        del function.attributes[name]


@looks_up(MethodVariable)
def _method(tx: Tracer, obj: MethodVariable, name: str) -> VariableTracker | None:
    if name == "__self__":
        return obj.receiver
    return obj.function if name == "__func__" else find_attribute(tx, obj.function, name)


@looks_up(BoundBuiltin)
def _bound_builtin(tx: Tracer, obj: BoundBuiltin, name: str) -> VariableTracker | None:
    if name == "__self__":
        return obj.receiver
    return ConstantVariable(obj.name) if name == "__name__" else built_in(tx, obj, name)


@looks_up(BuiltinVariable)
def _built_in_callable(tx: Tracer, obj: BuiltinVariable, name: str) -> VariableTracker | None:
    """Reads names of C functions, attributes of functions with an `lru_cache`, and overloads:
    `torch.ops.aten.add.Tensor`.

    An operator creates each overload on the first read, and keeps it."""
    if isinstance(obj.value, _CACHED) and (stored := _stored(tx, obj, name)) is not None:
        return stored
    if isinstance(obj.value, OpOverloadPacket) and name in obj.value.overloads():
        overload = getattr(obj.value, name)
        return tx.wrap(overload, Constant(overload, name))
    if type(obj.value) in _WRITTEN_IN_C and name in _NAMES_IN_C:
        return from_constant(getattr(obj.value, name))
    if isinstance(getattr(obj.value, name, None), str | OpOverloadPacket) and name != "__doc__":
        return tx.wrap(getattr(obj.value, name), Attr(obj.source, name) if obj.source else None)
    found = built_in(tx, obj, name)
    if found is None and hasattr(obj.value, name):  # an operator of torch has attributes of its own
        tx.break_graph("MD206", f"the attribute `{name}` of {an(type(obj.value).__name__)} cannot be captured")
    return found
