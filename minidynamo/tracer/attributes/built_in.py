"""Owns attributes of constants, dicts and tensors, and of opaque objects.

Attributes of other built-in values are not here: `binding.py` finds them on the class."""

from __future__ import annotations

import enum
from collections import OrderedDict
from typing import Any

import torch

from minidynamo.compat import OPERATOR_NAMESPACES, is_immutable_class
from minidynamo.errors import an
from minidynamo.graph.autograd_calls import replace_data
from minidynamo.graph.marks import FROM_DATA
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Constant, InstanceAttr
from minidynamo.tracer.attributes.binding import (
    MISSING,
    bind,
    built_in,
    class_of,
    guard_class_attribute,
    is_data_descriptor,
    is_user_code,
    lookup_on_class,
    or_getattr,
    overrides_class,
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
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.lazy import partial_reads
from minidynamo.tracer.lazy.lazy_lists import LazyList
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, from_constant, keyword_key
from minidynamo.tracer.records.fix_hints import HINTS_BY_CLASS, OPAQUE
from minidynamo.tracer.records.side_effects import DELETED
from minidynamo.tracer.records.tensor_classes import OF_TORCH, has_own_dispatch, overrides_functions
from minidynamo.tracer.trace_rules import is_trusted_class
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import (
    BoundBuiltin,
)
from minidynamo.variables.containers import DictVariable, TupleVariable
from minidynamo.variables.objects import (
    NamespaceVariable,
    OpaqueVariable,
)
from minidynamo.variables.tensors import TensorVariable


def _attribute_or_missing(value: object, name: str) -> Any:
    """Returns an attribute of a value, or MISSING; a user's `__getattr__` is not called."""
    try:
        return type(value).__getattribute__(value, name)
    except AttributeError:
        return MISSING


def _folded(tx: Tracer, obj: ConstantVariable, name: str) -> VariableTracker:
    try:
        return from_constant(_attribute_or_missing(obj.value, name))
    except NotConstant:
        tx.break_graph("MD206", f"the attribute `{name}` of {an(type(obj.value).__name__)} cannot be captured")


@looks_up(ConstantVariable)
def _constant(tx: Tracer, obj: ConstantVariable, name: str) -> VariableTracker | None:
    return or_getattr(tx, obj, obj.python_type, name, lambda: _value_attribute(tx, obj, name))


def _value_attribute(tx: Tracer, obj: ConstantVariable, name: str) -> VariableTracker | None:
    """Reads enum members, dtypes and similar constants: plain attributes are read from the value itself."""
    if name == "__class__":
        return class_of(tx, obj)
    part = partial_reads.attribute(tx, obj, name)
    if part is not None:
        return part
    cls = obj.python_type
    raw, owner = lookup_on_class(cls, name)
    precedes_dict = name != "__dict__" and is_data_descriptor(raw)
    if cls.__dictoffset__ and not precedes_dict and (is_user_code(tx) or not is_trusted_class(cls)):
        found = _member_attribute(tx, obj, name)
        if found is not None:
            return found
    if owner is not None and (callable(raw) or isinstance(raw, classmethod | staticmethod | property)):
        guard_class_attribute(tx, cls, owner, name, raw)
        return bind(tx, raw, owner, obj, cls, name)
    return None if _attribute_or_missing(obj.value, name) is MISSING else _folded(tx, obj, name)


def _member_attribute(tx: Tracer, obj: ConstantVariable, name: str) -> VariableTracker | None:
    """Returns an attribute in the dictionary of an enum member.

    A missing attribute is guarded, because a program may add attributes to a member."""
    stored = instance_dict(obj.value)
    if stored is None:
        return None
    member = Constant(obj.value, enum.Enum.__str__(obj.value) if isinstance(obj.value, enum.Enum) else str(obj.value))
    if name == "__dict__":
        return tx.wrap(stored, Attr(member, name))
    table = tx.graph.tracker_of(stored)
    if isinstance(table, DictVariable):  # the program may have written to the table
        return table.items.get(keyword_key(name))
    if name in stored:
        return tx.wrap(stored[name], InstanceAttr(member, name))
    tx.guard(member, GuardKind.NO_INSTANCE_ATTR, name)
    return None


def _has_attributes(obj: VariableTracker) -> bool:
    """Returns whether the value is an OrderedDict, whose instances may have attributes: `state_dict()` returns one."""
    return isinstance(obj, DictVariable) and obj.cls is OrderedDict and not isinstance(obj, NamespaceVariable)


@looks_up(TupleVariable)
def _tuple(tx: Tracer, obj: TupleVariable, name: str) -> VariableTracker | None:
    """Returns an attribute of the class, or of an instance of a namedtuple's subclass."""
    return or_getattr(tx, obj, obj.cls, name, lambda: _tuple_attribute(tx, obj, name))


def _tuple_attribute(tx: Tracer, obj: TupleVariable, name: str) -> VariableTracker | None:
    found = built_in(tx, obj, name)
    stored = instance_dict(obj.items.container) if found is None and isinstance(obj.items, LazyList) else None
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
    if FROM_DATA in obj.node.meta:
        tx.break_graph("MD212", f"`{name}` of a tensor that `min` or `max` returns is set", why="It is one of several.")
    if hasattr(torch.Tensor, name) and overrides_functions(obj.cls):
        cannot_write(tx, obj, name, value)
    if value is not None and name == "requires_grad":
        if not tx.truth(tx.getattr(obj, "is_leaf")):  # the method accepts this if nothing changes
            tx.raises(RuntimeError("you can only change requires_grad flags of leaf variables."))
        tx.call(BoundBuiltin(obj, "requires_grad_"), [value])
    elif value is not None and name == "data":
        tx.call(replace_data, [obj, value])
    elif value is not None and _can_set(tx, obj, name):
        tx.side_effects.set_attr(obj, name, value)
    elif value is None and name == "grad" and _can_set(tx, obj, name):
        tx.side_effects.set_attr(obj, name, ConstantVariable(None))  # as `del x.grad` does
    else:
        cannot_write(tx, obj, name, value)


def _can_set(tx: Tracer, obj: TensorVariable, name: str) -> bool:
    """Returns whether the write is to the gradient of an argument or new leaf, or to a non-torch attribute."""
    if hasattr(obj.cls, name) and name != "grad":
        return False
    return name != "grad" or obj.source is not None or tx.graph.use(obj).is_leaf


# Attributes that are read from objects which are otherwise opaque.
_FIELDS: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel", "__doc__"),
    classmethod: ("__func__",),
    staticmethod: ("__func__",),
}


# Attributes of tensors with `__torch_dispatch__` that are numbers or constants.
_OF_WRAPPED = frozenset(("dtype", "device", "layout", "ndim", "requires_grad", "shape"))


def _is_iterator_of_python(cls: type) -> bool:
    """Returns whether a class is `enumerate`, `zip` or similar: its objects have the attributes of the class alone."""
    return is_immutable_class(cls) and cls.__module__ in ("builtins", "itertools") and hasattr(cls, "__next__")


@looks_up(OpaqueVariable)
def _opaque(tx: Tracer, obj: OpaqueVariable, name: str) -> VariableTracker | None:
    if name == "__class__" and not overrides_class(obj.python_type):
        return class_of(tx, obj)
    if any(obj.value is space for space in OPERATOR_NAMESPACES) and hasattr(obj.value, name):
        found = getattr(obj.value, name)
        return tx.wrap(found, Constant(found, name))
    method, owner = lookup_on_class(obj.python_type, name)
    if owner is None and _is_iterator_of_python(obj.python_type):
        return None
    if isinstance(method, property) and id(method.fget) in registry.OPAQUE_METHODS:
        return registry.FUNCTIONS[id(method.fget)](tx, obj)
    if owner is not None and id(method) in registry.OPAQUE_METHODS and name not in (instance_dict(obj.value) or ()):
        if type(method).__name__ == "instancemethod":  # of a class that pybind11 made
            return BoundBuiltin(obj, name)
        return bind(tx, method, owner, obj, obj.python_type, name)
    if has_own_dispatch(obj.python_type) and owner in OF_TORCH and name not in vars(obj.value):
        if callable(method):
            return BoundBuiltin(obj, name)
        if name in _OF_WRAPPED and obj.source is not None:
            return tx.wrap(getattr(obj.value, name), Attr(obj.source, name))
    if name in _FIELDS.get(type(obj.value), ()) and obj.source is not None:
        return tx.wrap(getattr(obj.value, name), Attr(obj.source, name))
    tx.break_graph(
        "MD206",
        f"`{name}` of {an(obj.python_type.__name__)} is used",
        why=OPAQUE,
        fix=HINTS_BY_CLASS.get(obj.python_type.__name__, ""),
    )
