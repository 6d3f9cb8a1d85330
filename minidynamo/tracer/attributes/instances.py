"""Owns what an instance itself holds: its dictionary, slots, and the tables of nn.Module; and guards on what it lacks.

It does not decide what comes first; `objects.py` does.
"""

from __future__ import annotations

import collections
import inspect
import threading
from typing import Any

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, InstanceAttr, Item, Source
from minidynamo.tracer.attributes.binding import (
    lookup_on_class,
)
from minidynamo.tracer.lazy.lazy_value import realize
from minidynamo.tracer.lazy.namespaces import InstanceItems
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records.constants import key_of
from minidynamo.tracer.records.side_effects import DELETED, UNKNOWN
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictVariable
from minidynamo.variables.objects import (
    ModuleVariable,
    NamespaceVariable,
    ObjectVariable,
)

_PLAIN_TABLES = (dict, collections.OrderedDict)
_OWN_TABLE = "Its methods may run code of their own whenever a parameter or submodule is read."
# The dictionaries in which nn.Module keeps what is read as attributes.
MODULE_TABLES = ("_parameters", "_buffers", "_modules")


def _getter(cls: type) -> Any:
    """What reads attributes of an instance as C has them."""
    return threading.local.__getattribute__ if issubclass(cls, threading.local) else object.__getattribute__


def instance_dict(value: object) -> dict[str, Any] | None:
    """The object's own dictionary, read without running code of its class; None when it has none."""
    try:
        found = _getter(type(value))(value, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def attributes_of(tx: Tracer, obj: ObjectVariable) -> dict[str, Any] | None:
    """The dictionary of an object from outside, to look into; None when it has none, or is new.

    Attributes are found there whatever methods a dict of another class has, which reading it as a dict would run.
    """
    found = None if obj.value is None else instance_dict(obj.value)
    if found is None:
        return None
    if type(found) is not dict:
        what = f"the attributes of a {obj.cls.__name__} are kept in a {type(found).__name__}"
        tx.break_graph("MD206", what, why="Only those in a plain dict are looked at while tracing.")
    if obj.source is not None:
        tx.guard(Attr(obj.source, "__dict__"), GuardKind.TYPE, dict)
    return found


def attribute_table(tx: Tracer, obj: ObjectVariable) -> DictVariable | None:
    """The dict in which an object has its attributes where that is tracked as a dict of its own: the program has put it
    there (`self.__dict__ = d`), or the object is that dict."""
    table = tx.side_effects.attr(obj, "__dict__")
    if table is UNKNOWN and obj.storage is not None and obj.value is not None and instance_dict(obj.value) is obj.value:
        table = obj
    if isinstance(table, ObjectVariable):
        table = table.storage or UNKNOWN
    return table if isinstance(table, DictVariable) else None


def in_instance(tx: Tracer, obj: ObjectVariable, name: str) -> VariableTracker | None:
    """What the program has written, or what the dictionary holds; it may be unread."""
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
    return tx.graph.lazy(value, InstanceAttr(obj.source, name)) if obj.source else tx.wrap(value, None)


def namespace_of(tx: Tracer, obj: ObjectVariable) -> VariableTracker:
    """The object's own dictionary, as a tracked dict; the same one each time."""
    if attribute_table(tx, obj) is not None:
        given = tx.side_effects.attr(obj, "__dict__")
        return given if isinstance(given, VariableTracker) else obj
    if obj.namespace is None:
        real = attributes_of(tx, obj)
        if obj.value is not None and real is None:
            tx.break_graph("MD206", f"the attribute `__dict__` of a {obj.cls.__name__} cannot be captured")
        slots = [n for base in obj.cls.__mro__ for n, v in vars(base).items() if inspect.ismemberdescriptor(v)]
        place = None if obj.source is None else Attr(obj.source, "__dict__")
        items: Any = InstanceItems(tx, obj, real, frozenset(slots))
        obj.namespace = NamespaceVariable(items, source=place, owner=obj)
    return obj.namespace


def in_module_tables(tx: Tracer, obj: ModuleVariable, name: str) -> VariableTracker | None:
    """A parameter, buffer or submodule, maybe unread, in nn.Module's own order. That none has the name is guarded."""
    attributes = attributes_of(tx, obj) or {}
    lacking: list[Source] = []
    for table in MODULE_TABLES:
        place = InstanceAttr(obj.source, table) if obj.source is not None else None
        registered = attributes.get(table)
        tracked = tx.side_effects.attr(obj, table)
        if tracked is UNKNOWN and place is not None and tx.graph.tracker_of(registered) is not None:
            tracked = tx.wrap(registered, place)  # which may be the table of another module, too: of a shallow copy
        elif isinstance(tracked, VariableTracker):
            tracked = realize(tx, tracked)
        is_another = place is None or (isinstance(tracked, VariableTracker) and tracked.source != place)
        if isinstance(tracked, DictVariable) and (is_another or tx.side_effects.is_changed(tracked)):
            found = tracked.items.get(key_of(ConstantVariable(name)))
            if found is not None:
                guard_absent(tx, obj, name)
                return found
        elif isinstance(tracked, VariableTracker) and is_another:
            tx.break_graph("MD206", f"`{table}` of a module was replaced while it is being traced")
        elif place is not None and isinstance(registered, dict):
            if type(registered) not in _PLAIN_TABLES:
                tx.break_graph("MD206", f"`{table}` of a module is a {type(registered).__name__}", why=_OWN_TABLE)
            tx.guard(place, GuardKind.TYPE, type(registered))
            if name in registered:
                guard_absent(tx, obj, name)
                return tx.graph.lazy(registered[name], Item(place, name))
            lacking.append(place)
    for lacks in lacking:
        tx.guard(lacks, GuardKind.MISSING_KEY, name)
    return None


def read_slot(tx: Tracer, obj: ObjectVariable, name: str) -> VariableTracker | None:
    """What a slot holds, maybe unread; None when it is empty, which is guarded."""
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
    return tx.graph.lazy(value, Attr(obj.source, name))


def guard_missing(tx: Tracer, obj: ObjectVariable, name: str) -> None:
    """Guard that the attribute was not there; an empty slot, and what the program itself deleted, is known better."""
    if attribute_table(tx, obj) is not None:
        return  # which was asked
    if lookup_on_class(obj.cls, name)[1] is None and tx.side_effects.attr(obj, name) is not DELETED:
        attributes_of(tx, obj)
        tx.guard(obj.source, GuardKind.MISSING_ATTR, name)


def guard_absent(tx: Tracer, obj: ObjectVariable, name: str) -> None:
    """Guard that the instance itself has no such attribute, unless it was deleted while tracing."""
    if attribute_table(tx, obj) is not None:
        in_instance(tx, obj, name)
    elif obj.value is not None and tx.side_effects.attr(obj, name) is not DELETED:
        attributes_of(tx, obj)
        tx.guard(obj.source, GuardKind.NO_INSTANCE_ATTR, name)
