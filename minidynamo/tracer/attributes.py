"""Owns attribute access: Python's order of lookup, once, for every kind of value, and writing and deleting attributes.

What a kind of tracker answers itself comes from the registry. Guards: what was found where, and what was not there.
"""

from __future__ import annotations

import inspect
import types
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any, NoReturn

import torch

from minidynamo.compat import OPERATOR_NAMESPACES, VERSION_INFO, OpOverloadPacket
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Constant, InstanceAttr, Item, Source
from minidynamo.tracer import registry
from minidynamo.tracer.constants import NotConstant, as_constant, from_constant, key_of
from minidynamo.tracer.exceptions import caught, unsaid
from minidynamo.tracer.namespaces import ClassItems, InstanceItems
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.side_effects import DELETED, UNKNOWN
from minidynamo.tracer.trace_rules import is_library_value, is_trusted_class, is_trusted_module
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import (
    BoundBuiltin,
    BuiltinVariable,
    FunctionVariable,
    MethodVariable,
    NestedFunctionVariable,
    SuperVariable,
)
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictVariable
from minidynamo.variables.exceptions import ExceptionVariable
from minidynamo.variables.objects import (
    ClassVariable,
    ModuleVariable,
    NamespaceVariable,
    ObjectVariable,
    OpaqueVariable,
    PythonModuleVariable,
)
from minidynamo.variables.tensors import TensorVariable

MISSING = object()
_FUNCTIONS = (FunctionVariable, NestedFunctionVariable)
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")


def read_attribute(tx: Tracer, obj: VariableTracker, name: str) -> VariableTracker:
    """`obj.name`; the program raises natively when there is no such attribute."""
    found = find_attribute(tx, obj, name)
    if found is None:
        raise_no_attribute(tx, obj, name)
    return found


def raise_no_attribute(tx: Tracer, obj: VariableTracker, name: str) -> NoReturn:
    """Raise the AttributeError of a failed lookup."""
    if isinstance(obj, ClassVariable):
        tx.raises(AttributeError(f"type object {obj.value.__name__!r} has no attribute {name!r}"), exact=True)
    if isinstance(obj, PythonModuleVariable | SuperVariable):
        tx.raises(unsaid(AttributeError))
    tx.raises(AttributeError(f"{obj.python_type.__name__!r} object has no attribute {name!r}"), exact=True)


def find_attribute(tx: Tracer, obj: VariableTracker, name: str) -> VariableTracker | None:
    """`obj.name`, or None when the lookup would raise AttributeError; that is guarded."""
    handler = registry.ATTRIBUTES.get(type(obj))
    found = handler(tx, obj, name) if handler is not None else None
    if found is not None:
        return found
    lookup = _LOOKUPS.get(type(obj), _built_in)
    return lookup(tx, obj, name)


def lookup_on_class(cls: type, name: str, passed: Collection[type] = ()) -> tuple[Any, type | None]:
    """What the class or its bases, but for those in `passed`, hold under `name` and which of them does, or MISSING."""
    for owner in cls.__mro__:
        if name in owner.__dict__ and owner not in passed:
            return owner.__dict__[name], owner
    return MISSING, None


# Built-in values: their attributes are those of their class


def _built_in(tx: Tracer, obj: VariableTracker, name: str) -> VariableTracker | None:
    cls = obj.python_type
    if name == "__class__":
        return class_of(tx, obj)
    found, owner = lookup_on_class(cls, name)
    if owner is None:
        return None
    guard_class_attribute(tx, cls, owner, name, found)  # a namedtuple's class is the program's
    if inspect.isgetsetdescriptor(found) or inspect.ismemberdescriptor(found):
        return _read_built_in_descriptor(tx, found, obj, cls, name)
    return bind(tx, found, owner, obj, cls, name)


def _folded(tx: Tracer, obj: ConstantVariable, name: str) -> VariableTracker:
    value = getattr(obj.value, name)
    try:
        return from_constant(value)
    except NotConstant:
        tx.break_graph("MD206", f"the attribute `{name}` of a {type(obj.value).__name__} cannot be captured")


def _constant(tx: Tracer, obj: ConstantVariable, name: str) -> VariableTracker | None:
    """Enum members, dtypes and the like: attributes that are not callable are read from the value itself."""
    if name == "__class__":
        return class_of(tx, obj)
    cls = type(obj.value)
    raw, owner = lookup_on_class(cls, name)
    if owner is not None and (callable(raw) or isinstance(raw, classmethod | staticmethod | property)):
        guard_class_attribute(tx, cls, owner, name, raw)
        return bind(tx, raw, owner, obj, cls, name)
    stored = instance_dict(obj.value)
    if stored is not None and name in stored and not is_trusted_class(cls):  # a member of the program's own enum
        return tx.wrap(stored[name], InstanceAttr(Constant(obj.value, str(obj.value)), name))
    return _folded(tx, obj, name) if hasattr(obj.value, name) else None


def class_of(tx: Tracer, obj: VariableTracker) -> VariableTracker:
    """`type(obj)`; the class of every tracked value is guarded already."""
    cls = obj.python_type
    return tx.wrap(cls, Constant(cls, cls.__name__))


def has_attributes(obj: VariableTracker) -> bool:
    """Whether it is an OrderedDict, whose instances can have attributes of their own; `state_dict()` makes one."""
    return isinstance(obj, DictVariable) and obj.cls is OrderedDict and not isinstance(obj, NamespaceVariable)


def _dict(tx: Tracer, obj: DictVariable, name: str) -> VariableTracker | None:
    if not has_attributes(obj) or hasattr(obj.cls, name):
        return _built_in(tx, obj, name)
    pending = tx.side_effects.attr(obj, name)
    if isinstance(pending, VariableTracker):
        return pending
    if obj.source is not None and pending is not DELETED:
        if obj.attributes is not None and name in obj.attributes:
            return tx.wrap(obj.attributes[name], InstanceAttr(obj.source, name))
        tx.guard(obj.source, GuardKind.NO_INSTANCE_ATTR, name)
    return None


# Objects


def _object(tx: Tracer, obj: ObjectVariable, name: str) -> VariableTracker | None:
    cls = obj.cls
    if name == "__class__":
        return class_of(tx, obj)
    custom, owner = lookup_on_class(cls, "__getattribute__")
    if isinstance(custom, types.FunctionType) and owner is not None:
        return _with_getattribute(tx, obj, name, custom, owner)
    usual = _usual(tx, obj, name)
    if usual is not None:
        return usual
    if isinstance(obj, ModuleVariable):
        registered = _in_module_tables(tx, obj, name)
        if registered is not None:
            return registered
    return _fallback(tx, obj, name)


def _with_getattribute(
    tx: Tracer, obj: ObjectVariable, name: str, custom: types.FunctionType, owner: type
) -> VariableTracker | None:
    """The class's own `__getattribute__`; when it raises AttributeError, its `__getattr__`."""
    guard_class_attribute(tx, obj.cls, owner, "__getattribute__", custom)
    function = tx.wrap(custom, class_source(owner, "__getattribute__"))
    if lookup_on_class(obj.cls, "__getattr__")[1] is None:
        return tx.call(function, [obj, ConstantVariable(name)])
    missing: list[VariableTracker] = []
    found = caught(AttributeError, lambda: tx.call(function, [obj, ConstantVariable(name)]), missing.append)
    return _fallback(tx, obj, name) if missing else found


def _fallback(tx: Tracer, obj: ObjectVariable, name: str) -> VariableTracker | None:
    """What `__getattr__` gives for an attribute that is not there; None without one."""
    cls = obj.cls
    fallback, owner = lookup_on_class(cls, "__getattr__")
    if owner is not None and fallback is not torch.nn.Module.__getattr__:
        guard_class_attribute(tx, cls, owner, "__getattr__", fallback)
        _guard_absent(tx, obj, name)
        getter = bind(tx, fallback, owner, obj, cls, "__getattr__")
        assert getter is not None
        return tx.call(getter, [ConstantVariable(name)])
    _guard_missing(tx, obj, name)
    return None


def _guard_missing(tx: Tracer, obj: ObjectVariable, name: str) -> None:
    """Guard that the attribute was not there; an empty slot, and what the program itself deleted, is known better."""
    if lookup_on_class(obj.cls, name)[1] is None and tx.side_effects.attr(obj, name) is not DELETED:
        tx.guard(obj.source, GuardKind.MISSING_ATTR, name)


def _usual(tx: Tracer, obj: ObjectVariable, name: str) -> VariableTracker | None:
    """What `object.__getattribute__` finds: data descriptor, instance dictionary, class."""
    cls = obj.cls
    if name == "__class__":
        return class_of(tx, obj)
    written, passed = _written_class_attribute(tx, cls, name)
    found, owner = lookup_on_class(cls, name, passed)
    if written is None and owner is not None and is_data_descriptor(found):
        guard_class_attribute(tx, cls, owner, name, found)
        return _read_descriptor(tx, obj, name, found, owner)
    stored = _in_instance(tx, obj, name)
    if stored is not None:
        if owner is not None:
            guard_class_attribute(tx, cls, owner, name, found)  # it must not become a data descriptor
        return stored
    if written is not None:
        _guard_absent(tx, obj, name)
        return MethodVariable(written, obj) if isinstance(written, _FUNCTIONS) else written
    if owner is not None:
        guard_class_attribute(tx, cls, owner, name, found)
        _guard_absent(tx, obj, name)
        return bind(tx, found, owner, obj, cls, name)
    return None


def _in_instance(tx: Tracer, obj: ObjectVariable, name: str) -> VariableTracker | None:
    pending = tx.side_effects.attr(obj, name)
    if isinstance(pending, VariableTracker):
        return pending
    if pending is DELETED or obj.value is None:
        return None
    attributes = instance_dict(obj.value)
    if attributes is None or name not in attributes:
        return None
    return tx.wrap(attributes[name], InstanceAttr(obj.source, name) if obj.source else None)


def _namespace(tx: Tracer, obj: ObjectVariable) -> VariableTracker:
    """The object's own dictionary, as a tracked dict; the same one each time."""
    if obj.namespace is None:
        real = None if obj.value is None else instance_dict(obj.value)
        if obj.value is not None and type(real) is not dict:
            tx.break_graph("MD206", f"the attribute `__dict__` of a {obj.cls.__name__} cannot be captured")
        slots = [n for base in obj.cls.__mro__ for n, v in vars(base).items() if inspect.ismemberdescriptor(v)]
        place = None if obj.source is None else Attr(obj.source, "__dict__")
        tx.guard(place, GuardKind.TYPE, dict)
        items: Any = InstanceItems(tx, obj, real, frozenset(slots))
        obj.namespace = NamespaceVariable(items, source=place, owner=obj)
    return obj.namespace


def instance_dict(value: object) -> dict[str, Any] | None:
    """The object's own dictionary, read without running code of its class; None when it has none."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def _in_module_tables(tx: Tracer, obj: ModuleVariable, name: str) -> VariableTracker | None:
    """A parameter, buffer or submodule; the order is nn.Module's own. That none has the name is guarded."""
    attributes = (instance_dict(obj.value) if obj.value is not None else None) or {}
    lacking: list[Source] = []
    for table in _MODULE_TABLES:
        place = InstanceAttr(obj.source, table) if obj.source is not None else None
        tracked = tx.side_effects.attr(obj, table)
        if tracked is UNKNOWN and place is not None:
            tracked = tx.graph.known(place) or UNKNOWN
        if isinstance(tracked, DictVariable) and (tracked.source is None or tx.side_effects.is_changed(tracked)):
            found = tracked.items.get(key_of(ConstantVariable(name)))
            if found is not None:
                return found
        elif isinstance(tracked, VariableTracker) and tracked.source != place:
            tx.break_graph("MD206", f"`{table}` of a module was replaced while it is being traced")
        elif place is not None and isinstance(registered := attributes.get(table), dict):
            if name in registered:
                _guard_absent(tx, obj, name)
                return tx.wrap(registered[name], Item(place, name))
            lacking.append(place)
    for lacks in lacking:
        tx.guard(lacks, GuardKind.MISSING_KEY, name)
    return None


def _guard_absent(tx: Tracer, obj: ObjectVariable, name: str) -> None:
    """Guard that the instance itself has no such attribute, unless it was deleted while tracing."""
    if obj.value is not None and tx.side_effects.attr(obj, name) is not DELETED:
        tx.guard(obj.source, GuardKind.NO_INSTANCE_ATTR, name)


def guard_class_attribute(tx: Tracer, cls: type, owner: type, name: str, value: object) -> None:
    """Guard what was found on a class, unless only library classes had a say."""
    passed = cls.__mro__[: cls.__mro__.index(owner) + 1]
    if not all(is_trusted_class(base) for base in passed):
        tx.guard(Constant(cls, cls.__name__), GuardKind.CLASS_ATTR, (name, value))


def class_source(owner: type, name: str) -> Source:
    """Where an attribute that was found on a class lives."""
    return Item(Attr(Constant(owner, owner.__name__), "__dict__"), name)


# Descriptors


def is_data_descriptor(found: Any) -> bool:
    """Whether it takes precedence over the instance's dictionary."""
    return hasattr(type(found), "__set__") or hasattr(type(found), "__delete__")


def _read_descriptor(tx: Tracer, obj: ObjectVariable, name: str, found: Any, owner: type) -> VariableTracker | None:
    source = class_source(owner, name)
    if isinstance(found, property):
        return tx.call(tx.wrap(found.fget, Attr(source, "fget")), [obj])
    if name == "__dict__" and not isinstance(type(found).__get__, types.FunctionType):
        return _namespace(tx, obj)
    if obj.storage is not None and issubclass(obj.storage.python_type, owner):
        return find_attribute(tx, obj.storage, name)  # what the built-in class says of the container
    if isinstance(found, types.MemberDescriptorType):
        return _read_slot(tx, obj, name)
    getter, getter_owner = lookup_on_class(type(found), "__get__")
    if isinstance(getter, types.FunctionType) and getter_owner is not None:
        descriptor = tx.wrap(found, source)
        return tx.call_method(descriptor, "__get__", [obj, class_of(tx, obj)])
    tx.break_graph("MD206", f"the attribute `{name}` of a {obj.cls.__name__} cannot be captured")


def _read_slot(tx: Tracer, obj: ObjectVariable, name: str) -> VariableTracker | None:
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
    return tx.wrap(value, Attr(obj.source, name))


def bind(
    tx: Tracer, found: Any, owner: type, receiver: VariableTracker | None, cls: type, name: str
) -> VariableTracker | None:
    """What reading an attribute gives that was found on a class, through an instance (or the class, without one)."""
    source = Constant(found, name) if is_trusted_class(owner) and is_library_value(found) else class_source(owner, name)
    if isinstance(found, staticmethod):
        return tx.wrap(found.__func__, Attr(source, "__func__"))
    if isinstance(found, classmethod):
        return MethodVariable(
            tx.wrap(found.__func__, Attr(source, "__func__")), tx.wrap(cls, Constant(cls, cls.__name__))
        )
    if isinstance(found, types.ClassMethodDescriptorType):
        return BuiltinVariable(getattr(cls, name), source=Attr(Constant(cls, cls.__name__), name))
    getter, getter_owner = lookup_on_class(type(found), "__get__")
    if isinstance(getter, types.FunctionType):
        instance = receiver or ConstantVariable(None)
        return tx.call_method(tx.wrap(found, source), "__get__", [instance, tx.wrap(cls, Constant(cls, cls.__name__))])
    if receiver is None:
        return tx.wrap(found, source)
    if isinstance(found, types.FunctionType):
        return MethodVariable(tx.wrap(found, source), receiver)
    if isinstance(found, types.MethodDescriptorType | types.WrapperDescriptorType):
        if found.__name__ == name:
            return BoundBuiltin(receiver, name)
        return MethodVariable(tx.wrap(found, source), receiver)  # one method under the name of another
    if getter_owner is None:
        return tx.wrap(found, source)
    if isinstance(found, property):
        return tx.call(tx.wrap(found.fget, Attr(source, "fget")), [receiver])
    return _read_built_in_descriptor(tx, found, receiver, cls, name)


def _read_built_in_descriptor(
    tx: Tracer, found: Any, receiver: VariableTracker, cls: type, name: str
) -> VariableTracker | None:
    """Fields of namedtuples and of torch.return_types are positions in the tuple."""
    items = getattr(receiver, "items", None)
    if cls is type(VERSION_INFO) and name in cls.__match_args__ and isinstance(items, list):
        return items[cls.__match_args__.index(name)]  # type: ignore[no-any-return]
    if isinstance(items, list) and issubclass(cls, tuple):
        positions: Any = range(len(items))
        plain: Any = tuple.__new__(cls, positions) if hasattr(cls, "_fields") else cls(positions)
        position = found.__get__(plain, cls)
        if isinstance(position, int):
            return items[position]  # type: ignore[no-any-return]
    tx.break_graph("MD206", f"the attribute `{name}` of a {cls.__name__} cannot be captured")


# Classes, modules, functions, super


def _class(tx: Tracer, obj: ClassVariable, name: str) -> VariableTracker | None:
    cls = obj.value
    meta, meta_owner = lookup_on_class(type(cls), name)
    if meta_owner is not None and is_data_descriptor(meta):
        return _of_metaclass(tx, obj, name, meta, meta_owner)
    written, passed = _written_class_attribute(tx, cls, name)
    if written is not None:
        return written
    found, owner = lookup_on_class(cls, name, passed)
    if owner is not None:
        guard_class_attribute(tx, cls, owner, name, found)
        return bind(tx, found, owner, None, cls, name)
    if meta_owner is not None:
        guard_class_attribute(tx, type(cls), meta_owner, name, meta)
        return bind(tx, meta, meta_owner, obj, type(cls), name)
    fallback, owner = lookup_on_class(type(cls), "__getattr__")
    if isinstance(fallback, types.FunctionType) and owner is not None:
        return tx.call(tx.wrap(fallback, class_source(owner, "__getattr__")), [obj, ConstantVariable(name)])
    return None


def _of_metaclass(tx: Tracer, obj: ClassVariable, name: str, found: Any, owner: type) -> VariableTracker:
    """A property of the metaclass, or what `type` itself says about a class."""
    cls = obj.value
    if isinstance(found, property) and isinstance(found.fget, types.FunctionType):
        return tx.call(tx.wrap(found.fget, Attr(class_source(owner, name), "fget")), [obj])
    if owner is type and name in ("__name__", "__qualname__", "__module__", "__doc__"):
        return ConstantVariable(getattr(cls, name))
    if owner is type and name in ("__mro__", "__bases__"):
        return from_constant(getattr(cls, name))
    if owner is type and name == "__dict__":
        items: Any = ClassItems(tx, cls)
        source = Attr(Constant(cls, cls.__name__), name)
        return NamespaceVariable(items, types.MappingProxyType, source=source, owner=obj)
    tx.break_graph("MD206", f"the attribute `{name}` of the class {cls.__name__} cannot be captured")


# Attributes of classes that the program writes


def _written_class_attribute(tx: Tracer, cls: type, name: str) -> tuple[VariableTracker | None, frozenset[type]]:
    """What the program has put into the class or a base, if that comes first; and the classes it deleted it from."""
    passed: set[type] = set()
    for base in cls.__mro__ if tx.side_effects.writes_classes else ():
        written = tx.side_effects.class_attr(base, name)
        if isinstance(written, VariableTracker):
            return written, frozenset(passed)
        if written is DELETED:
            passed.add(base)
        elif name in base.__dict__:
            break
    return None, frozenset(passed)


def _write_class(tx: Tracer, obj: ClassVariable, name: str, value: VariableTracker | None) -> None:
    """`cls.name = value`. Names with a meaning to Python, and values that bind in other ways, are left to Python."""
    cls = obj.value
    special = "__setattr__" if value is not None else "__delattr__"
    custom, owner = lookup_on_class(type(cls), special)
    if isinstance(custom, types.FunctionType) and owner is not None and not is_trusted_class(owner):
        args = [obj, ConstantVariable(name), *([] if value is None else [value])]
        tx.call(tx.wrap(custom, class_source(owner, special)), args)
        return
    described = lookup_on_class(type(cls), name)[1] is not None or name.startswith("__") or is_trusted_class(cls)
    if described or not _is_plain_setter(custom, special) or not (value is None or _binds_plainly(value)):
        tx.break_graph("MD206", f"writing `{name}` of the class {cls.__name__} cannot be captured")
    if value is None:
        written = tx.side_effects.class_attr(cls, name)
        if written is DELETED or (written is UNKNOWN and name not in cls.__dict__):
            tx.raises(AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}"))
    tx.side_effects.set_class_attr(ClassVariable(cls, source=Constant(cls, cls.__name__)), name, value)


def _binds_plainly(value: VariableTracker) -> bool:
    """Whether reading the value through an instance gives it as it is, or, for a function, a method."""
    return isinstance(value, _FUNCTIONS) or lookup_on_class(value.python_type, "__get__")[1] is None


def _python_module(tx: Tracer, obj: PythonModuleVariable, name: str) -> VariableTracker | None:
    namespace = vars(obj.value)
    written = tx.side_effects.read_global(namespace, name)
    if isinstance(written, VariableTracker):
        return written
    if name == "__dict__":
        tx.break_graph("MD206", "the dictionary of a module cannot be captured")
    trusted = is_trusted_module(obj.value.__name__)
    if name in namespace and written is not DELETED:
        value = namespace[name]
        if trusted and is_library_value(value):
            return tx.wrap(value, Constant(value, name))
        base = obj.source or Constant(obj.value, obj.value.__name__)
        return tx.wrap(value, Item(Attr(base, "__dict__"), name))
    if trusted and hasattr(obj.value, name):  # a library module that loads its parts lazily
        value = getattr(obj.value, name)
        return tx.wrap(value, Constant(value, name))
    if not trusted and ("__getattr__" in namespace or type(obj.value) is not types.ModuleType):
        tx.break_graph(
            "MD206", f"`{name}` of {obj.value.__name__} is used", why="The module makes it when it is asked."
        )
    if obj.source is not None:
        tx.guard(Attr(obj.source, "__dict__"), GuardKind.MISSING_KEY, name)
    return None


def _function(tx: Tracer, obj: FunctionVariable, name: str) -> VariableTracker | None:
    pending = tx.side_effects.attr(obj, name)
    if isinstance(pending, VariableTracker):
        return pending
    if name in ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__", "__dict__"):
        return tx.wrap(getattr(obj.value, name), Attr(obj.source, name) if obj.source else None)
    if name in obj.value.__dict__ and pending is not DELETED:
        source = Item(Attr(obj.source, "__dict__"), name) if obj.source else None
        return tx.wrap(obj.value.__dict__[name], source)
    if obj.source is not None and not is_trusted_module(obj.value.__module__):
        tx.guard(Attr(obj.source, "__dict__"), GuardKind.MISSING_KEY, name)
    return _built_in(tx, obj, name)


def _nested_function(tx: Tracer, obj: NestedFunctionVariable, name: str) -> VariableTracker | None:
    if name in obj.attributes:
        return obj.attributes[name]
    if name == "__name__":
        return ConstantVariable(obj.code.co_name)
    if name == "__qualname__":
        return ConstantVariable(obj.qualname)
    if name == "__module__":
        return ConstantVariable(obj.namespace.get("__name__"))
    return _built_in(tx, obj, name)


def _method(tx: Tracer, obj: MethodVariable, name: str) -> VariableTracker | None:
    if name == "__self__":
        return obj.receiver
    return obj.function if name == "__func__" else find_attribute(tx, obj.function, name)


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


def _built_in_callable(tx: Tracer, obj: BuiltinVariable, name: str) -> VariableTracker | None:
    """`torch.ops.aten.add.Tensor`: an operator makes its overloads, which stay, when they are first read."""
    if isinstance(obj.value, OpOverloadPacket) and name in obj.value.overloads():
        overload = getattr(obj.value, name)
        return tx.wrap(overload, Constant(overload, name))
    found = _built_in(tx, obj, name)
    if found is None and hasattr(obj.value, name):  # an operator of torch has attributes of its own
        tx.break_graph("MD206", f"the attribute `{name}` of a {type(obj.value).__name__} cannot be captured")
    return found


def _opaque(tx: Tracer, obj: OpaqueVariable, name: str) -> VariableTracker | None:
    if name == "__class__":
        return class_of(tx, obj)
    if any(obj.value is space for space in OPERATOR_NAMESPACES) and hasattr(obj.value, name):
        found = getattr(obj.value, name)
        return tx.wrap(found, Constant(found, name))
    tx.break_graph(
        "MD206",
        f"`{name}` of a {obj.python_type.__name__} is used",
        why="minidynamo passes objects of this class on but cannot look into them.",
    )


_LOOKUPS: dict[type[VariableTracker], Callable[[Tracer, Any, str], VariableTracker | None]] = {
    ConstantVariable: _constant,
    DictVariable: _dict,
    ObjectVariable: _object,
    ExceptionVariable: _object,
    ModuleVariable: _object,
    ClassVariable: _class,
    PythonModuleVariable: _python_module,
    FunctionVariable: _function,
    NestedFunctionVariable: _nested_function,
    MethodVariable: _method,
    SuperVariable: _super,
    OpaqueVariable: _opaque,
    BuiltinVariable: _built_in_callable,
}


# getattr, hasattr, setattr, delattr


def _name(tx: Tracer, name: VariableTracker) -> str:
    try:
        text = as_constant(name)
    except NotConstant:
        text = None
    if not isinstance(text, str):
        tx.raises(TypeError("attribute name must be string"))
    return text


@registry.function(getattr)
def _getattr(
    tx: Tracer, obj: VariableTracker, name: VariableTracker, default: VariableTracker | None = None, /
) -> VariableTracker:
    if default is None:
        return read_attribute(tx, obj, _name(tx, name))
    return _attribute_or_none(tx, obj, _name(tx, name)) or default


@registry.function(hasattr)
def _hasattr(tx: Tracer, obj: VariableTracker, name: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(_attribute_or_none(tx, obj, _name(tx, name)) is not None)


def _attribute_or_none(tx: Tracer, obj: VariableTracker, name: str) -> VariableTracker | None:
    """The attribute; None also when the program's own `__getattr__` or property raises AttributeError."""
    missing: list[VariableTracker] = []
    found = caught(AttributeError, lambda: find_attribute(tx, obj, name), missing.append)
    return None if missing else found


@registry.function(setattr)
def _setattr(tx: Tracer, obj: VariableTracker, name: VariableTracker, value: VariableTracker, /) -> VariableTracker:
    write_attribute(tx, obj, _name(tx, name), value)
    return ConstantVariable(None)


@registry.function(delattr)
def _delattr(tx: Tracer, obj: VariableTracker, name: VariableTracker, /) -> VariableTracker:
    write_attribute(tx, obj, _name(tx, name), None)
    return ConstantVariable(None)


def write_attribute(tx: Tracer, obj: VariableTracker, name: str, value: VariableTracker | None) -> None:
    """`obj.name = value`, or `del obj.name` for None, the class's own rules first."""
    if isinstance(obj, ObjectVariable):
        _write_object(tx, obj, name, value)
    elif isinstance(obj, ClassVariable):
        _write_class(tx, obj, name, value)
    elif isinstance(obj, PythonModuleVariable):
        tx.side_effects.set_global(vars(obj.value), name, value)
    elif isinstance(obj, NestedFunctionVariable) and (not name.startswith("__") or (value and name in _FUNCTION_NAMES)):
        _write_nested_function(tx, obj, name, value)
    elif (isinstance(obj, FunctionVariable) and not name.startswith("__")) or (
        has_attributes(obj) and not hasattr(OrderedDict, name)
    ):
        store_attribute(tx, obj, name, value)
    elif isinstance(obj, TensorVariable) and value is not None and name == "requires_grad":
        tx.call(BoundBuiltin(obj, "requires_grad_"), [value])
    elif isinstance(obj, TensorVariable) and value is not None and _can_set(obj, name):
        tx.side_effects.set_attr(obj, name, value)
    else:
        tx.break_graph("MD206", f"writing `{name}` of a {obj.python_type.__name__} cannot be captured")


def _can_set(obj: TensorVariable, name: str) -> bool:
    """The gradient of an argument, or an attribute that tensors do not have themselves."""
    return not hasattr(obj.cls, name) or (name == "grad" and obj.source is not None)


# Fields of functions that are as easily replaced as attributes that the program invents.
_FUNCTION_NAMES = ("__name__", "__qualname__", "__module__", "__doc__", "__wrapped__")


def _write_nested_function(
    tx: Tracer, function: NestedFunctionVariable, name: str, value: VariableTracker | None
) -> None:
    if value is not None:
        if name in ("__name__", "__qualname__") and not issubclass(value.python_type, str):
            tx.raises(TypeError(f"{name} must be set to a string object"), exact=True)
        function.attributes[name] = value
    elif name not in function.attributes:
        raise_no_attribute(tx, function, name)
    else:
        del function.attributes[name]


def _write_object(tx: Tracer, obj: ObjectVariable, name: str, value: VariableTracker | None) -> None:
    cls = obj.cls
    special = "__setattr__" if value is not None else "__delattr__"
    args = [ConstantVariable(name)] + ([value] if value is not None else [])
    custom, owner = lookup_on_class(cls, special)
    if owner is not None and not _is_plain_setter(custom, special):
        guard_class_attribute(tx, cls, owner, special, custom)
        setter = bind(tx, custom, owner, obj, cls, special)
        assert setter is not None
        tx.call(setter, args)
        return
    write_plain(tx, obj, name, value)


def _is_plain_setter(found: object, special: str) -> bool:
    """Whether it is `object.__setattr__` or `__delattr__`, or a built-in class's own, which do the same."""
    return isinstance(found, types.WrapperDescriptorType) and found.__name__ == special


def write_plain(tx: Tracer, obj: ObjectVariable, name: str, value: VariableTracker | None) -> None:
    """What object.__setattr__ and object.__delattr__ do: data descriptors, then the instance's dictionary."""
    found, owner = lookup_on_class(obj.cls, name)
    if name == "__dict__" and value is not None and value is obj.namespace:
        return  # what `obj.__dict__ |= ...` stores
    if owner is not None and is_data_descriptor(found) and not isinstance(found, types.MemberDescriptorType):
        guard_class_attribute(tx, obj.cls, owner, name, found)
        method = "__set__" if value is not None else "__delete__"
        if isinstance(lookup_on_class(type(found), method)[0], types.FunctionType):
            descriptor = tx.wrap(found, class_source(owner, name))
            tx.call_method(descriptor, method, [obj] if value is None else [obj, value])
            return
        function = getattr(found, "fset" if value is not None else "fdel", None)
        if isinstance(found, property) and function is None:
            what = "setter" if value is not None else "deleter"
            text = f"property {name!r} of {obj.cls.__qualname__!r} object has no {what}"
            tx.raises(AttributeError(text), exact=True)
        if function is None:
            tx.break_graph("MD206", f"writing `{name}` of a {obj.cls.__name__} cannot be captured")
        field = "fset" if value is not None else "fdel"
        setter = tx.wrap(function, Attr(class_source(owner, name), field))
        tx.call(setter, [obj] if value is None else [obj, value])
        return
    if owner is not None:
        guard_class_attribute(tx, obj.cls, owner, name, found)
    store_attribute(tx, obj, name, value)


def store_attribute(tx: Tracer, obj: VariableTracker, name: str, value: VariableTracker | None) -> None:
    """Report an attribute write that runs no user code."""
    if value is not None:
        tx.side_effects.set_attr(obj, name, value)
    else:
        if find_attribute(tx, obj, name) is None:
            tx.raises(unsaid(AttributeError))
        tx.side_effects.delete_attr(obj, name)


@registry.method(object, "__setattr__", "__delattr__")
def _object_setattr(
    tx: Tracer, obj: VariableTracker, name: VariableTracker, value: VariableTracker | None = None, /
) -> VariableTracker:
    if not isinstance(obj, ObjectVariable):
        tx.break_graph("MD206", f"writing an attribute of a {obj.python_type.__name__} cannot be captured")
    write_plain(tx, obj, _name(tx, name), value)
    return ConstantVariable(None)


@registry.method(object, "__getattribute__")
def _object_getattribute(tx: Tracer, obj: VariableTracker, name: VariableTracker, /) -> VariableTracker:
    if not isinstance(obj, ObjectVariable):
        return read_attribute(tx, obj, _name(tx, name))
    found = _usual(tx, obj, _name(tx, name))
    if found is None:
        _guard_missing(tx, obj, _name(tx, name))
        raise_no_attribute(tx, obj, _name(tx, name))
    return found
