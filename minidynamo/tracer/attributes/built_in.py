"""Owns attributes of constants, dicts and tensors, and of objects that cannot be looked into.

Values of other built-in classes have what their class has, which `binding.py` finds.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from typing import Any

from minidynamo.compat import OPERATOR_NAMESPACES
from minidynamo.graph.autograd_calls import replace_data
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Computed, Constant, InstanceAttr
from minidynamo.tracer.attributes.binding import (
    MISSING,
    asked_by_program,
    bind,
    built_in,
    claims_class,
    class_of,
    guard_class_attribute,
    is_data_descriptor,
    lookup_on_class,
    or_getattr,
)
from minidynamo.tracer.attributes.instances import (
    instance_dict,
)
from minidynamo.tracer.attributes.lookup import (
    cannot_write,
    looks_up,
    store_attribute,
    writes,
)
from minidynamo.tracer.lazy import partial_reads
from minidynamo.tracer.lazy.lazy_tuples import LazyTuple
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, from_constant, given_back, key_named
from minidynamo.tracer.records.copies import can_be_two, is_made_anew
from minidynamo.tracer.records.fix_hints import INSTEAD
from minidynamo.tracer.records.side_effects import DELETED
from minidynamo.tracer.trace_rules import is_trusted_class
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import (
    BoundBuiltin,
)
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictVariable, TupleVariable
from minidynamo.variables.objects import (
    NamespaceVariable,
    OpaqueVariable,
)
from minidynamo.variables.tensors import TensorVariable


def _bound(obj: ConstantVariable, name: str) -> VariableTracker | None:
    """The int that was given to the range that the program has made."""
    order = ("stop",) if len(obj.made_of) == 1 else ("start", "stop", "step")
    return dict(zip(order, obj.made_of)).get(name)


def _held(value: object, name: str) -> Any:
    """An attribute of a value, or MISSING; the `__getattr__` of a program's enum is not asked."""
    try:
        return type(value).__getattribute__(value, name)
    except AttributeError:
        return MISSING


def _folded(tx: Tracer, obj: ConstantVariable, name: str) -> VariableTracker:
    value = _held(obj.value, name)
    unchanged = _bound(obj, name) or given_back(value, [obj], [obj.value])
    is_held = _held(obj.value, name) is value
    if unchanged is None and is_held and obj.source is not None and can_be_two(value) and is_made_anew(obj.value):
        return ConstantVariable(value, source=Computed(f"{{0}}.{name}", (obj.source,)))  # of what was given this time
    lasting = is_held and not is_made_anew(obj.value)
    try:
        return from_constant(value, lasting=lasting) if unchanged is None else unchanged
    except NotConstant:
        tx.break_graph("MD206", f"the attribute `{name}` of a {type(obj.value).__name__} cannot be captured")


@looks_up(ConstantVariable)
def _constant(tx: Tracer, obj: ConstantVariable, name: str) -> VariableTracker | None:
    return or_getattr(tx, obj, obj.python_type, name, lambda: _of_value(tx, obj, name))


def _of_value(tx: Tracer, obj: ConstantVariable, name: str) -> VariableTracker | None:
    """Enum members, dtypes and the like: attributes that are not callable are read from the value itself."""
    if name == "__class__":
        return class_of(tx, obj)
    part = partial_reads.attribute(tx, obj, name)
    if part is not None:
        return part
    cls = obj.python_type
    raw, owner = lookup_on_class(cls, name)
    comes_first = name != "__dict__" and is_data_descriptor(raw)
    if cls.__dictoffset__ and not comes_first and (asked_by_program(tx) or not is_trusted_class(cls)):
        found = _of_member(tx, obj, name)
        if found is not None:
            return found
    if owner is not None and (callable(raw) or isinstance(raw, classmethod | staticmethod | property)):
        guard_class_attribute(tx, cls, owner, name, raw)
        return bind(tx, raw, owner, obj, cls, name)
    return None if _held(obj.value, name) is MISSING else _folded(tx, obj, name)


def _of_member(tx: Tracer, obj: ConstantVariable, name: str) -> VariableTracker | None:
    """Returns the value that a member of an enum holds itself. That it holds none is guarded: attributes may be added
    to a member."""
    stored = instance_dict(obj.value)
    if stored is None:
        return None
    member = Constant(obj.value, enum.Enum.__str__(obj.value) if isinstance(obj.value, enum.Enum) else str(obj.value))
    if name == "__dict__":
        return tx.wrap(stored, Attr(member, name))
    table = tx.graph.tracker_of(stored)
    if isinstance(table, DictVariable):  # to which the program may have written
        return table.items.get(key_named(name))
    if name in stored:
        return tx.wrap(stored[name], InstanceAttr(member, name))
    tx.guard(member, GuardKind.NO_INSTANCE_ATTR, name)
    return None


def _has_attributes(obj: VariableTracker) -> bool:
    """Whether it is an OrderedDict, whose instances can have attributes of their own; `state_dict()` makes one."""
    return isinstance(obj, DictVariable) and obj.cls is OrderedDict and not isinstance(obj, NamespaceVariable)


@looks_up(TupleVariable)
def _tuple(tx: Tracer, obj: TupleVariable, name: str) -> VariableTracker | None:
    """Returns what the class has, and what an instance of a subclass of a namedtuple holds itself."""
    return or_getattr(tx, obj, obj.cls, name, lambda: _of_tuple(tx, obj, name))


def _of_tuple(tx: Tracer, obj: TupleVariable, name: str) -> VariableTracker | None:
    found = built_in(tx, obj, name)
    stored = instance_dict(obj.items.real) if found is None and isinstance(obj.items, LazyTuple) else None
    if stored is None or obj.source is None:
        return found
    if name in stored:
        return tx.wrap(stored[name], InstanceAttr(obj.source, name))
    tx.guard(obj.source, GuardKind.NO_INSTANCE_ATTR, name)
    return None


@looks_up(DictVariable)
def _dict(tx: Tracer, obj: DictVariable, name: str) -> VariableTracker | None:
    if not _has_attributes(obj) or hasattr(obj.cls, name):
        return built_in(tx, obj, name)
    pending = tx.side_effects.attr(obj, name)
    if isinstance(pending, VariableTracker):
        return pending
    if obj.source is not None and pending is not DELETED:
        if obj.attributes is not None and name in obj.attributes:
            return tx.wrap(obj.attributes[name], InstanceAttr(obj.source, name))
        tx.guard(obj.source, GuardKind.NO_INSTANCE_ATTR, name)
    return None


@writes(DictVariable)
def _write_dict(tx: Tracer, obj: DictVariable, name: str, value: VariableTracker | None) -> None:
    if not _has_attributes(obj) or hasattr(OrderedDict, name):
        cannot_write(tx, obj, name, value)
    store_attribute(tx, obj, name, value)


@writes(TensorVariable)
def _write_tensor(tx: Tracer, obj: TensorVariable, name: str, value: VariableTracker | None) -> None:
    if value is not None and name == "requires_grad":
        if not tx.truth(tx.getattr(obj, "is_leaf")):  # which the method takes, where it changes nothing
            tx.raises(RuntimeError("you can only change requires_grad flags of leaf variables."))
        tx.call(BoundBuiltin(obj, "requires_grad_"), [value])
    elif value is not None and name == "data":
        tx.call(replace_data, [obj, value])
    elif value is not None and _can_set(tx, obj, name):
        tx.side_effects.set_attr(obj, name, value)
    elif value is None and name == "grad" and _can_set(tx, obj, name):
        tx.side_effects.set_attr(obj, name, ConstantVariable(None))  # that is what `del` does
    else:
        cannot_write(tx, obj, name, value)


def _can_set(tx: Tracer, obj: TensorVariable, name: str) -> bool:
    """The gradient of an argument or a new leaf, or an attribute that tensors do not have themselves."""
    if hasattr(obj.cls, name) and name != "grad":
        return False
    return name != "grad" or obj.source is not None or tx.graph.use(obj).is_leaf


# What is read of objects that are passed on otherwise.
_FIELDS: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel", "__doc__"),
    classmethod: ("__func__",),
    staticmethod: ("__func__",),
}


@looks_up(OpaqueVariable)
def _opaque(tx: Tracer, obj: OpaqueVariable, name: str) -> VariableTracker | None:
    if name == "__class__" and not claims_class(obj.python_type):
        return class_of(tx, obj)
    if any(obj.value is space for space in OPERATOR_NAMESPACES) and hasattr(obj.value, name):
        found = getattr(obj.value, name)
        return tx.wrap(found, Constant(found, name))
    method, owner = lookup_on_class(obj.python_type, name)
    if owner is not None and id(method) in registry.OPAQUE_METHODS and name not in (instance_dict(obj.value) or ()):
        return bind(tx, method, owner, obj, obj.python_type, name)
    if name in _FIELDS.get(type(obj.value), ()) and obj.source is not None:
        return tx.wrap(getattr(obj.value, name), Attr(obj.source, name))
    tx.break_graph(
        "MD206",
        f"`{name}` of a {obj.python_type.__name__} is used",
        why="minidynamo passes objects of this class on but cannot look into them.",
        fix=INSTEAD.get(obj.python_type.__name__, ""),
    )
