"""Owns attributes of Python modules, which are their globals.

Attributes of nn.Module objects are not here (`instances.py`)."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from minidynamo.core.names import name_of
from minidynamo.errors import an
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Constant, Item
from minidynamo.tracer.attributes.binding import (
    built_in,
    is_data_descriptor,
    is_plain_setter,
    is_user_code,
    lookup_on_class,
)
from minidynamo.tracer.attributes.lookup import (
    cannot_write,
    looks_up,
    writes,
)
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.lazy.namespaces import ModuleItems
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.side_effects import DELETED
from minidynamo.tracer.trace_rules import is_library_value, is_trusted_module
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.objects import NamespaceVariable, PythonModuleVariable


@looks_up(PythonModuleVariable)
def _python_module(tx: Tracer, obj: PythonModuleVariable, name: str) -> VariableTracker | None:
    cls = type(obj.value)
    if lookup_on_class(cls, "__getattribute__")[1] is not types.ModuleType:
        tx.break_graph("MD206", f"`{name}` of {an(cls.__name__)} is used", why="The module's own class answers.")
    namespace = vars(obj.value)
    written = tx.side_effects.read_global(namespace, name)
    if isinstance(written, VariableTracker):
        return written
    if name == "__dict__":
        return _globals_of(tx, obj)
    trusted = is_trusted_module(namespace.get("__name__"))
    base = obj.source or Constant(obj.value, name_of(obj.value))
    if not trusted and cls is not types.ModuleType and _precedes_globals(cls, name):
        return built_in(tx, obj, name)
    if name in namespace and written is not DELETED:
        value = namespace[name]
        if trusted and is_library_value(value):
            _guard_replaceable(tx, obj, name, value)
            return tx.wrap(value, Constant(value, name))
        return tx.lazy(value, Item(Attr(base, "__dict__"), name))
    if trusted and hasattr(obj.value, name):  # a library module that loads its parts lazily, or reads settings
        value = getattr(obj.value, name)
        return tx.wrap(value, Constant(value, name) if is_library_value(value) else Attr(base, name))
    if name not in namespace:
        tx.guard(Attr(base, "__dict__"), GuardKind.MISSING_KEY, name)
    if trusted or name == "__getattr__":
        return None
    found = built_in(tx, obj, name)
    if found is not None or hasattr(types.ModuleType, name):
        return found
    fallback = built_in(tx, obj, "__getattr__") or _python_module(tx, obj, "__getattr__")
    return None if fallback is None else tx.call(fallback.realize(), [ConstantVariable(name)], lazy=True)


def _globals_of(tx: Tracer, obj: PythonModuleVariable) -> VariableTracker:
    """Returns the module's dictionary; the same tracker each time."""
    if obj.namespace is None:
        namespace = vars(obj.value)
        if tx.graph.claim_namespace(namespace, obj) is not obj:
            tx.break_graph("MD206", "the dictionary of a module is used, and is also passed as a dict")
        items: Any = ModuleItems(tx, namespace, is_trusted_module(namespace.get("__name__")))
        obj.namespace = NamespaceVariable(items, source=items.source, owner=obj)
    return obj.namespace


@registry.function(globals)
def _globals(tx: Tracer) -> VariableTracker:
    namespace = tx.frames[-1].namespace
    name = namespace.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    if module is None or module.__dict__ is not namespace:
        what, why = "`globals` of a function that belongs to no module", "Unknown code may use the same globals."
        tx.break_graph("MD206", what, why=why, fix="Read the names from it.")
    return tx.getattr(tx.wrap(module, Constant(module, name_of(module))), "__dict__")


def _precedes_globals(cls: type, name: str) -> bool:
    """Returns whether the module's own class defines a data descriptor, which precedes the globals."""
    found, owner = lookup_on_class(cls, name)
    return owner not in (None, types.ModuleType, object) and is_data_descriptor(found)


def _guard_replaceable(tx: Tracer, module: PythonModuleVariable, name: str, value: object) -> None:
    """Guards a library's function that programs may replace: called by the program, or in torch.nn.functional."""
    may_be_replaced = is_user_code(tx) or module.value is torch.nn.functional
    if may_be_replaced and isinstance(value, types.FunctionType | types.BuiltinFunctionType):
        tx.guard(Attr(Constant(module.value, module.value.__name__), name), GuardKind.IDENTITY, value)


@writes(PythonModuleVariable)
def _write_python_module(tx: Tracer, obj: PythonModuleVariable, name: str, value: VariableTracker | None) -> None:
    special = "__setattr__" if value is not None else "__delattr__"
    cls = type(obj.value)
    if _precedes_globals(cls, name) or not is_plain_setter(lookup_on_class(cls, special)[0], special):
        cannot_write(tx, obj, name, value)
    tx.side_effects.set_global(vars(obj.value), name, value)
