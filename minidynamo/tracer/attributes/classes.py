"""Owns attributes of classes: metaclass, bases, writes of the program to a class; and `super()`.

Binding is not here (`binding.py`)."""

from __future__ import annotations

import types
from typing import Any

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Constant
from minidynamo.tracer.attributes.binding import (
    FUNCTIONS,
    TYPE_OF,
    bind,
    class_of,
    class_source,
    guard_class_attribute,
    guard_found_on_class,
    is_data_descriptor,
    is_plain_setter,
    is_user_code,
    lookup_on_class,
    or_getattr,
)
from minidynamo.tracer.attributes.lookup import (
    looks_up,
    writes,
)
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.lazy.namespaces import ClassItems
from minidynamo.tracer.records.constants import from_constant
from minidynamo.tracer.records.fix_hints import CHANGE_OUTSIDE
from minidynamo.tracer.records.side_effects import DELETED, UNKNOWN
from minidynamo.tracer.trace_rules import is_trusted_class
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import (
    BoundBuiltin,
    BuiltinVariable,
    MethodVariable,
    SuperVariable,
)
from minidynamo.variables.objects import (
    ClassVariable,
    NamespaceVariable,
)

_IMMUTABLE = 1 << 8  # CPython's flag of classes that take no attributes


@looks_up(ClassVariable)
def _class(tx: Tracer, obj: ClassVariable, name: str) -> VariableTracker | None:
    return or_getattr(tx, obj, type(obj.value), name, lambda: _default_class_lookup(tx, obj, name))


def _default_class_lookup(tx: Tracer, obj: ClassVariable, name: str) -> VariableTracker | None:
    """Looks up as `type.__getattribute__`: data descriptor of the metaclass, class and bases, metaclass."""
    cls = obj.value
    meta, meta_owner = lookup_on_class(type(cls), name)
    if meta_owner is not None and is_data_descriptor(meta):
        return _metaclass_attribute(tx, obj, name, meta, meta_owner)
    written, deleted = written_class_attribute(tx, cls, name)
    if written is not None:
        return written
    found, owner = lookup_on_class(cls, name, deleted)
    if owner is not None:
        guard_found_on_class(tx, cls, owner, name, found)
        return bind(tx, found, owner, None, cls, name)
    if meta_owner is not None:
        guard_class_attribute(tx, type(cls), meta_owner, name, meta)
        return bind(tx, meta, meta_owner, obj, type(cls), name)
    if is_user_code(tx):
        _guard_library_lacks(tx, cls, name)
    return None


def _guard_library_lacks(tx: Tracer, cls: type, name: str) -> None:
    """Guards that no library class has the attribute: a program may add it.

    The names of the user's classes have guards already."""
    for base in cls.__mro__:
        if is_trusted_class(base) and not base.__flags__ & _IMMUTABLE:
            tx.guard(Attr(Constant(base, base.__name__), "__dict__"), GuardKind.MISSING_KEY, name)


# Attributes of a class that nothing can change once it exists.
_FIXED = frozenset(("__text_signature__", "__dictoffset__", "__basicsize__", "__itemsize__"))


def _metaclass_attribute(tx: Tracer, obj: ClassVariable, name: str, found: Any, owner: type) -> VariableTracker:
    """Returns a property of the metaclass, or an attribute that `type` defines for classes."""
    cls = obj.value
    if isinstance(found, property) and isinstance(found.fget, types.FunctionType):
        return tx.call(tx.wrap(found.fget, Attr(class_source(owner, name), "fget")), [obj])
    if found is TYPE_OF:
        return class_of(tx, obj)
    if owner is type and name in ("__name__", "__qualname__", "__module__", "__doc__", *_FIXED):
        value = getattr(cls, name)
        if name not in _FIXED and isinstance(value, str) and _may_be_renamed(tx, cls):
            tx.guard(Attr(Constant(cls, cls.__name__), name), GuardKind.EQUALS, value)
        return ConstantVariable(value)
    if owner is type and name in ("__mro__", "__bases__"):
        return from_constant(getattr(cls, name), literal=True)
    if owner is type and name == "__annotations__" and name in vars(cls):
        return tx.wrap(vars(cls)[name], class_source(cls, name))
    if owner is type and name == "__dict__":
        items: Any = ClassItems(tx, cls)
        source = Attr(Constant(cls, cls.__name__), name)
        return NamespaceVariable(items, types.MappingProxyType, source=source, owner=obj)
    tx.break_graph("MD206", f"the attribute `{name}` of the class {cls.__name__} cannot be captured")


def _may_be_renamed(tx: Tracer, cls: type) -> bool:
    """Returns whether another program may change the names and texts of a class."""
    return id(cls) not in tx.side_effects.new_classes and not is_trusted_class(cls)


def written_class_attribute(tx: Tracer, cls: type, name: str) -> tuple[VariableTracker | None, frozenset[type]]:
    """Returns the value that the program wrote to the first class in the MRO, if any, and the classes before it from
    which the program deleted the attribute."""
    deleted: set[type] = set()
    for base in cls.__mro__ if tx.side_effects.writes_classes else ():
        written = tx.side_effects.class_attr(base, name)
        if isinstance(written, VariableTracker):
            return written, frozenset(deleted)
        if written is DELETED:
            deleted.add(base)
        elif name in base.__dict__:
            break
    return None, frozenset(deleted)


@writes(ClassVariable)
def _write_class(tx: Tracer, obj: ClassVariable, name: str, value: VariableTracker | None) -> None:
    """Writes or deletes an attribute of a class.

    Python does these writes itself, after a graph break:
    - names with a meaning to Python, and values that bind in other ways;
    - classes of libraries, except counters, such as torch's ids of hook handles."""
    cls = obj.value
    special = "__setattr__" if value is not None else "__delattr__"
    custom, owner = lookup_on_class(type(cls), special)
    if isinstance(custom, types.FunctionType) and owner is not None and not is_trusted_class(owner):
        args = [obj, ConstantVariable(name), *([] if value is None else [value])]
        tx.call(tx.wrap(custom, class_source(owner, special)), args)
        return
    has_meaning = lookup_on_class(type(cls), name)[1] is not None or name.startswith("__")
    is_plain = not has_meaning and is_plain_setter(custom, special) and (value is None or _binds_plainly(value))
    of_library = is_trusted_class(cls)
    increase = _counter_increase(tx, cls, name, value) if is_plain and of_library else None
    if not is_plain or (of_library and increase is None):
        tx.break_graph("MD206", f"writing `{name}` of the class {cls.__name__} cannot be captured", fix=CHANGE_OUTSIDE)
    written_to = ClassVariable(cls, source=Constant(cls, cls.__name__))
    if value is not None and increase is not None:
        tx.side_effects.advance_counter(written_to, name, value, increase)
        return
    if value is None:
        written = tx.side_effects.class_attr(cls, name)
        if written is DELETED or (written is UNKNOWN and name not in cls.__dict__):
            tx.raises(AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}"))
    tx.side_effects.set_class_attr(written_to, name, value)


def _counter_increase(tx: Tracer, cls: type, name: str, value: VariableTracker | None) -> int | None:
    """Returns the increase of the class's counter by a write of an int over an int; None for other writes."""
    written = tx.side_effects.class_attr(cls, name)
    before = written.value if isinstance(written, ConstantVariable) else cls.__dict__.get(name)
    if type(before) is not int or not isinstance(value, ConstantVariable) or value.python_type is not int:
        return None
    if written is UNKNOWN:  # the increase depends on a value that the program may not have read
        tx.guard(class_source(cls, name), GuardKind.EQUALS, before)
    number: int = value.value
    return number - before


def _binds_plainly(value: VariableTracker) -> bool:
    """Returns whether an instance reads the value unchanged, or as a method if it is a function."""
    return isinstance(value, FUNCTIONS) or lookup_on_class(value.python_type, "__get__")[1] is None


@looks_up(SuperVariable)
def _super(tx: Tracer, obj: SuperVariable, name: str) -> VariableTracker | None:
    receiver = obj.receiver
    is_class = isinstance(receiver, ClassVariable) and issubclass(receiver.value, obj.cls)  # not so in a metaclass
    cls = receiver.value if isinstance(receiver, ClassVariable) and is_class else receiver.python_type
    for owner in cls.__mro__[cls.__mro__.index(obj.cls) + 1 :]:
        if tx.side_effects.class_attr(owner, name) is not UNKNOWN:
            tx.break_graph("MD206", f"`super().{name}` after `{name}` of the class {owner.__name__} was written")
        if name in owner.__dict__:
            found = owner.__dict__[name]
            if not is_trusted_class(owner):
                tx.guard(Constant(owner, owner.__name__), GuardKind.CLASS_ATTR, (name, found))
            value = bind(tx, found, owner, None if is_class else receiver, cls, name)
            if isinstance(value, BoundBuiltin):  # must not be looked up on the object's class again
                return MethodVariable(BuiltinVariable(found, source=class_source(owner, name)), receiver)
            return value
    return None
