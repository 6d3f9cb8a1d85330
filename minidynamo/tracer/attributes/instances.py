"""Owns the attributes in an instance: its dictionary, slots, and the tables of nn.Module, with guards on missing names.

The order of lookup is not here (`objects.py`)."""

from __future__ import annotations

import collections
import inspect
import threading
from typing import Any

from minidynamo.errors import an
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, InstanceAttr, Item, Source
from minidynamo.tracer.attributes.binding import (
    lookup_on_class,
)
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.lazy.namespaces import InstanceItems
from minidynamo.tracer.records.constants import key_of
from minidynamo.tracer.records.side_effects import DELETED, UNKNOWN
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import DictVariable
from minidynamo.variables.objects import (
    ModuleVariable,
    NamespaceVariable,
    ObjectVariable,
)

_PLAIN_TABLES = (dict, collections.OrderedDict)
_OWN_TABLE = "Its methods may run code of their own whenever a parameter or submodule is read."
# Dictionaries in which nn.Module keeps attributes.
MODULE_TABLES = ("_parameters", "_buffers", "_modules")


def _getter(cls: type) -> Any:
    """Returns the C function that reads attributes of an instance."""
    return threading.local.__getattribute__ if issubclass(cls, threading.local) else object.__getattribute__


def instance_dict(value: object) -> dict[str, Any] | None:
    """Returns the object's own dictionary without running code of its class; None if it has none."""
    try:
        found = _getter(type(value))(value, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def is_plain_namespace(value: object) -> bool:
    """Returns whether a dict can be read both as a dict and as the attributes of an object."""
    return type(value) is dict and all(type(name) is str for name in value)


def attributes_of(tx: Tracer, obj: ObjectVariable) -> dict[str, Any] | None:
    """Returns the dictionary of an external object, for reading; None for a new object or an object without a
    dictionary.

    A dict subclass breaks the graph: Python reads attributes without calling its methods, but a read of a tracked dict
    would call them."""
    found = None if obj.value is None else instance_dict(obj.value)
    if found is None:
        return None
    if type(found) is not dict:
        what = f"the attributes of {an(obj.cls.__name__)} are kept in {an(type(found).__name__)}"
        tx.break_graph("MD206", what, why="Only attributes in a plain dict are read while tracing.")
    if obj.source is not None:
        tx.guard(Attr(obj.source, "__dict__"), GuardKind.TYPE, dict)
    return found


def attribute_table(tx: Tracer, obj: ObjectVariable) -> DictVariable | None:
    """Returns the tracked dict with an object's attributes; None if no dict is tracked.

    A dict is tracked if the program assigned it (`self.__dict__ = d`), if the object is itself the dict, or if another
    object shares it."""
    if obj.shares is not None:
        shared = namespace_of(tx, obj.shares) if isinstance(obj.shares, ObjectVariable) else obj.shares
        assert isinstance(shared, DictVariable)
        return shared
    table = tx.side_effects.attr(obj, "__dict__")
    if table is UNKNOWN and obj.storage is not None and obj.value is not None and instance_dict(obj.value) is obj.value:
        table = obj
    if isinstance(table, ObjectVariable):
        table = table.storage or UNKNOWN
    return table if isinstance(table, DictVariable) else None


def attribute_in_instance(tx: Tracer, obj: ObjectVariable, name: str) -> VariableTracker | None:
    """Returns an attribute written by the program or held by the dictionary; the value may be lazy."""
    table = attribute_table(tx, obj)
    if table is not None:
        return table.items.get(key_of(ConstantVariable(name)))
    pending = tx.side_effects.attr(obj, name)
    if isinstance(pending, VariableTracker):
        return pending
    if pending is DELETED or obj.value is None:
        return None
    attributes = attributes_of(tx, obj)
    if attributes is None or name not in attributes:
        return None
    value = attributes[name]
    return tx.lazy(value, InstanceAttr(obj.source, name)) if obj.source else tx.wrap(value, None)


def namespace_of(tx: Tracer, obj: ObjectVariable) -> VariableTracker:
    """Returns the object's own dictionary as a tracked dict; the same tracker each time."""
    table = attribute_table(tx, obj)
    if table is not None:
        replacement = table if obj.shares is not None else tx.side_effects.attr(obj, "__dict__")
        return replacement if isinstance(replacement, VariableTracker) else obj
    if obj.namespace is None:
        real = attributes_of(tx, obj)
        if obj.value is not None and real is None:
            tx.break_graph("MD206", f"the attribute `__dict__` of {an(obj.cls.__name__)} cannot be captured")
        slots = [n for base in obj.cls.__mro__ for n, v in vars(base).items() if inspect.ismemberdescriptor(v)]
        table_source = None if obj.source is None else Attr(obj.source, "__dict__")
        items: Any = InstanceItems(tx, obj, real, frozenset(slots))
        obj.namespace = NamespaceVariable(items, source=table_source, owner=obj)
    return obj.namespace


def attribute_in_module_tables(tx: Tracer, obj: ModuleVariable, name: str) -> VariableTracker | None:
    """Returns a parameter, buffer or submodule, in the lookup order of nn.Module; the value may be lazy.

    A missing name is guarded."""
    attributes = attributes_of(tx, obj) or {}
    tables_without_name: list[Source] = []
    for table in MODULE_TABLES:
        table_source = InstanceAttr(obj.source, table) if obj.source is not None else None
        registered = attributes.get(table)
        tracked = tx.side_effects.attr(obj, table)
        if tracked is UNKNOWN and table_source is not None and tx.graph.tracker_of(registered) is not None:
            tracked = tx.wrap(registered, table_source)  # a shallow copy of a module shares its tables
        elif isinstance(tracked, VariableTracker):
            tracked = tracked.realize()
        is_replaced = table_source is None or (isinstance(tracked, VariableTracker) and tracked.source != table_source)
        if isinstance(tracked, DictVariable) and (is_replaced or tx.side_effects.is_changed(tracked)):
            found = tracked.items.get(key_of(ConstantVariable(name)))
            if found is not None:
                guard_not_in_instance(tx, obj, name)
                return found
        elif isinstance(tracked, VariableTracker) and is_replaced:
            tx.break_graph("MD206", f"`{table}` of a module was replaced while it is being traced")
        elif table_source is not None and isinstance(registered, dict):
            if type(registered) not in _PLAIN_TABLES:
                tx.break_graph("MD206", f"`{table}` of a module is {an(type(registered).__name__)}", why=_OWN_TABLE)
            tx.guard(table_source, GuardKind.TYPE, type(registered))
            if name in registered:
                guard_not_in_instance(tx, obj, name)
                return tx.lazy(registered[name], Item(table_source, name))
            tables_without_name.append(table_source)
    for source in tables_without_name:
        tx.guard(source, GuardKind.MISSING_KEY, name)
    return None


def read_slot(tx: Tracer, obj: ObjectVariable, name: str) -> VariableTracker | None:
    """Returns the value in a slot, which may be lazy; None for an empty slot, with a guard."""
    pending = tx.side_effects.attr(obj, name)
    if isinstance(pending, VariableTracker):
        return pending
    if pending is DELETED or obj.value is None or obj.source is None:
        return None
    try:
        value = object.__getattribute__(obj.value, name)
    except AttributeError:
        tx.guard(obj.source, GuardKind.SLOT_EMPTY, name)
        return None
    return tx.lazy(value, Attr(obj.source, name))


def guard_missing(tx: Tracer, obj: ObjectVariable, name: str) -> None:
    """Guards that the attribute is missing, except an empty slot, which has a guard, and a deletion by the program."""
    if attribute_table(tx, obj) is not None:
        return  # the lookup in the table had its guard
    if lookup_on_class(obj.cls, name)[1] is None and tx.side_effects.attr(obj, name) is not DELETED:
        attributes_of(tx, obj)
        tx.guard(obj.source, GuardKind.MISSING_ATTR, name)


def guard_not_in_instance(tx: Tracer, obj: ObjectVariable, name: str) -> None:
    """Guards that the instance itself lacks the attribute, unless it was deleted while tracing."""
    if attribute_table(tx, obj) is not None:
        attribute_in_instance(tx, obj, name)
    elif obj.value is not None and tx.side_effects.attr(obj, name) is not DELETED:
        attributes_of(tx, obj)
        tx.guard(obj.source, GuardKind.NO_INSTANCE_ATTR, name)
