"""Owns attributes of objects: `__getattribute__`, data descriptors, the instance, the class, `__getattr__`; and writes.

Reads of an instance's dictionary are not here (`instances.py`), nor is binding of class attributes (`binding.py`)."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import Any

import torch

from minidynamo.errors import an
from minidynamo.guards.source import Attr
from minidynamo.tracer.attributes.binding import (
    FIELD,
    FUNCTIONS,
    TYPE_OF,
    bind,
    call_getattr,
    class_of,
    class_source,
    guard_class_attribute,
    guard_found_on_class,
    is_data_descriptor,
    is_plain_setter,
    lookup_on_class,
    read_built_in_descriptor,
)
from minidynamo.tracer.attributes.classes import written_class_attribute
from minidynamo.tracer.attributes.instances import (
    attribute_in_instance,
    attribute_in_module_tables,
    attribute_table,
    guard_missing,
    guard_not_in_instance,
    namespace_of,
    read_slot,
)
from minidynamo.tracer.attributes.lookup import (
    find_attribute,
    looks_up,
    raise_like,
    raise_no_attribute,
    store_attribute,
    writes,
)
from minidynamo.tracer.frames.exceptions import catch_raised
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.lazy.lazy_value import exact_copy
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import BoundBuiltin, MethodVariable
from minidynamo.variables.containers import DictVariable
from minidynamo.variables.objects import ExceptionVariable, ModuleVariable, ObjectVariable

# Classes that also keep attributes elsewhere, or have a dictionary per thread.
_WITH_OTHER_STORAGE = (torch.nn.Module, BaseException, threading.local)


@looks_up(ObjectVariable, ExceptionVariable, ModuleVariable)
def _object(tx: Tracer, obj: ObjectVariable, name: str) -> VariableTracker | None:
    cls = obj.cls
    custom, owner = lookup_on_class(cls, "__getattribute__")
    if isinstance(custom, types.FunctionType) and owner is not None:
        return _with_getattribute(tx, obj, name, custom, owner)
    if lookup_on_class(cls, "__getattr__")[1] is None:
        usual = default_lookup(tx, obj, name)
        if usual is None:
            guard_missing(tx, obj, name)
        return usual
    return _or_fallback(tx, obj, name, lambda: default_lookup(tx, obj, name))


def _or_fallback(
    tx: Tracer, obj: ObjectVariable, name: str, find: Callable[[], VariableTracker | None]
) -> VariableTracker | None:
    """Returns the result of `find`; if it is None, or a property raises AttributeError, calls `__getattr__`."""
    missing: list[VariableTracker] = []
    found = catch_raised(AttributeError, find, missing.append)
    if found is not None:
        return found
    if lookup_on_class(obj.cls, "__getattr__")[0] is torch.nn.Module.__getattr__ and isinstance(obj, ModuleVariable):
        registered = attribute_in_module_tables(tx, obj, name)
        if registered is None and missing:
            raise_no_attribute(tx, obj, name)
        if registered is None:
            guard_missing(tx, obj, name)
        return registered
    if not missing:
        guard_not_in_instance(tx, obj, name)
    return call_getattr(tx, obj, obj.cls, name)


def _with_getattribute(
    tx: Tracer, obj: ObjectVariable, name: str, custom: types.FunctionType, owner: type
) -> VariableTracker | None:
    """Calls the class's own `__getattribute__`; if it raises AttributeError, calls the class's `__getattr__`."""
    guard_class_attribute(tx, obj.cls, owner, "__getattribute__", custom)
    function = tx.wrap(custom, class_source(owner, "__getattribute__"))

    def find() -> VariableTracker:
        return tx.call(function, [obj, ConstantVariable(name)], lazy=True)

    return find() if lookup_on_class(obj.cls, "__getattr__")[1] is None else _or_fallback(tx, obj, name, find)


def default_lookup(tx: Tracer, obj: ObjectVariable, name: str) -> VariableTracker | None:
    """Looks up as `object.__getattribute__`: data descriptor, instance dictionary, class."""
    cls = obj.cls
    if name == "__dict__" and issubclass(cls, threading.local):  # has a dict per thread, and no descriptor for it
        return namespace_of(tx, obj)
    written, deleted = written_class_attribute(tx, cls, name)
    found, owner = lookup_on_class(cls, name, deleted)
    if found is TYPE_OF:
        return class_of(tx, obj)
    if written is None and owner is not None and is_data_descriptor(found):
        guard_class_attribute(tx, cls, owner, name, found)
        return _read_descriptor(tx, obj, name, found, owner)
    stored = attribute_in_instance(tx, obj, name)
    if stored is not None:
        if owner is not None:
            guard_found_on_class(tx, cls, owner, name, found)  # it must not become a data descriptor
        return stored
    if written is not None:
        guard_not_in_instance(tx, obj, name)
        return MethodVariable(written, obj) if isinstance(written, FUNCTIONS) else written
    if owner is not None:
        guard_found_on_class(tx, cls, owner, name, found)
        guard_not_in_instance(tx, obj, name)
        return bind(tx, found, owner, obj, cls, name)
    return None


def _read_descriptor(tx: Tracer, obj: ObjectVariable, name: str, found: Any, owner: type) -> VariableTracker | None:
    source = class_source(owner, name)
    if isinstance(found, property):
        getter = tx.wrap(found.fget, Attr(source, "fget"))
        return tx.call(getter, [obj], lazy=True)
    if name == "__dict__" and not isinstance(type(found).__get__, types.FunctionType):
        return namespace_of(tx, obj)
    if obj.storage is not None and issubclass(obj.storage.python_type, owner):
        inherited = find_attribute(tx, obj.storage, name)  # the attribute that the built-in class defines
        return exact_copy(obj.storage) if inherited is obj.storage else inherited
    if isinstance(found, FIELD) and obj.storage is not None:  # of a namedtuple with more than its items
        return read_built_in_descriptor(tx, found, obj.storage, obj.cls, name)
    if isinstance(found, types.MemberDescriptorType):
        return read_slot(tx, obj, name)
    if found is vars(BaseException)["args"] and isinstance(obj.value, BaseException) and obj.source is not None:
        return tx.wrap(obj.value.args, Attr(obj.source, name))
    getter, getter_owner = lookup_on_class(type(found), "__get__")
    if isinstance(getter, types.FunctionType) and getter_owner is not None:
        descriptor = tx.wrap(found, source)
        return tx.call_method(descriptor, "__get__", [obj, class_of(tx, obj)], lazy=True)
    tx.break_graph("MD206", f"the attribute `{name}` of {an(obj.cls.__name__)} cannot be captured")


@writes(ObjectVariable, ExceptionVariable, ModuleVariable)
def _write_object(tx: Tracer, obj: ObjectVariable, name: str, value: VariableTracker | None) -> None:
    cls = obj.cls
    special = "__setattr__" if value is not None else "__delattr__"
    args = [ConstantVariable(name)] + ([value] if value is not None else [])
    custom, owner = lookup_on_class(cls, special)
    if owner is not None and not is_plain_setter(custom, special):
        guard_class_attribute(tx, cls, owner, special, custom)
        setter = bind(tx, custom, owner, obj, cls, special)
        assert setter is not None
        tx.call(setter, args)
        return
    default_write(tx, obj, name, value)


def default_write(tx: Tracer, obj: ObjectVariable, name: str, value: VariableTracker | None) -> None:
    """Does the work of object.__setattr__ and object.__delattr__: data descriptors, then the instance's dictionary."""
    found, owner = lookup_on_class(obj.cls, name)
    is_slot = isinstance(found, types.MemberDescriptorType)
    if name == "__dict__" and value is not None and value is obj.namespace:
        return  # the store of `obj.__dict__ |= ...`
    if name == "__dict__" and value is not None and _accepts_dict(obj, value):
        tx.side_effects.set_attr(obj, name, value.realize())
        return
    if owner is not None:
        guard_class_attribute(tx, obj.cls, owner, name, found)
    if owner is not None and is_data_descriptor(found) and not is_slot:
        _write_through_descriptor(tx, obj, name, value, found, owner)
        return
    if value is None:
        _delete_own(tx, obj, name, is_slot=is_slot)
        return
    has_dict = obj.cls.__dictoffset__ or issubclass(obj.cls, threading.local)  # has a dict per thread
    if not has_dict and not is_slot:
        raise_like(tx, lambda: object.__setattr__(_empty(obj.cls), name, None), obj)  # no dictionary, only slots
    table = None if is_slot else attribute_table(tx, obj)
    if table is None:
        store_attribute(tx, obj, name, value)
    else:
        tx.call(BoundBuiltin(table, "__setitem__"), [ConstantVariable(name), value])


def _write_through_descriptor(
    tx: Tracer, obj: ObjectVariable, name: str, value: VariableTracker | None, found: Any, owner: type
) -> None:
    """Calls the function with which a data descriptor of the class sets or deletes (None) an attribute."""
    method, field, role = ("__delete__", "fdel", "deleter") if value is None else ("__set__", "fset", "setter")
    args = [obj] if value is None else [obj, value]
    if isinstance(lookup_on_class(type(found), method)[0], types.FunctionType):
        tx.call_method(tx.wrap(found, class_source(owner, name)), method, args)
        return
    function = getattr(found, field, None)
    if isinstance(found, property) and function is None:
        text = f"property {name!r} of {obj.cls.__qualname__!r} object has no {role}"
        tx.raises(AttributeError(text), exact=True)
    if function is None:
        fix = "Fill the present dict: vars(obj).update(...)" if name == "__dict__" else ""
        tx.break_graph("MD206", f"writing `{name}` of {an(obj.cls.__name__)} cannot be captured", fix=fix)
    tx.call(tx.wrap(function, Attr(class_source(owner, name), field)), args)


def _accepts_dict(obj: ObjectVariable, value: VariableTracker) -> bool:
    """Returns whether a dict can become the `__dict__` of an object.

    The object must be new, and its previous dict must be unread."""
    if obj.value is not None or obj.namespace is not None or issubclass(obj.cls, _WITH_OTHER_STORAGE):
        return False
    table = value.storage if isinstance(value, ObjectVariable) else value
    return isinstance(table, DictVariable) and issubclass(table.python_type, dict)


def _delete_own(tx: Tracer, obj: ObjectVariable, name: str, *, is_slot: bool) -> None:
    """Deletes an attribute of the instance itself; attributes of its class or from `__getattr__` cannot be deleted."""
    stored = read_slot(tx, obj, name) if is_slot else attribute_in_instance(tx, obj, name)
    if stored is None:
        if not is_slot:
            guard_not_in_instance(tx, obj, name)
        raise_like(tx, lambda: object.__delattr__(_empty(obj.cls, *[name] * is_slot), name), obj)
    table = None if is_slot else attribute_table(tx, obj)
    if table is not None:
        tx.call(BoundBuiltin(table, "__delitem__"), [ConstantVariable(name)])
        return
    tx.side_effects.delete_attr(obj, name)


def _empty(cls: type, *slots: str) -> object:
    """Returns an object without attributes for which Python raises the AttributeErrors of an instance of `cls`."""
    attributes = {"__setattr__": None} if isinstance(cls.__setattr__, types.FunctionType) else {}
    names = (*slots, "__dict__") if cls.__dictoffset__ else slots
    return type(cls.__name__, (), {"__slots__": names, **attributes})()
