"""Owns calls of classes: constructs objects while tracing, by `__new__` and `__init__` as Python does.

Built-in classes are handlers and not here. A new object has no real counterpart: writes to its attributes go to the
journal of side effects, and the residual program constructs the object if code outside the frame can see it."""

from __future__ import annotations

import collections
import enum
import types
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch

from minidynamo.compat import is_made_at_run_time
from minidynamo.errors import Diagnostic, SkipFrame, an
from minidynamo.guards.source import Attr
from minidynamo.tracer.attributes import bind, class_source, guard_class_attribute, lookup_on_class
from minidynamo.tracer.frames.exceptions import HAS_OWN_FIELDS, can_make
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.lazy.lazy_value import realize_all, unpack_lazy
from minidynamo.tracer.numbers.arithmetic import specialized
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant, from_constant, has_own_missing
from minidynamo.tracer.records.fix_hints import MAKE_OUTSIDE
from minidynamo.tracer.trace_rules import is_trusted_class
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import (
    DictVariable,
    ListVariable,
    SetVariable,
    TupleVariable,
    is_plain_namedtuple,
    storage_class,
)
from minidynamo.variables.objects import ClassVariable, ModuleVariable, ObjectVariable

# Classes whose instances need more than their `__new__` and `__init__` do, with the reason for the graph break.
_NOT_CONSTRUCTED: tuple[tuple[type, str], ...] = (
    (torch.Tensor, "Tensor subclasses are made before the compiled function runs."),
)


def construct(
    tx: Tracer, cls: ClassVariable, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
) -> VariableTracker:
    """Calls `cls(*args, **kwargs)`: the metaclass decides how, and `type.__call__` makes an instance."""
    meta, owner = lookup_on_class(type(cls.value), "__call__")
    if isinstance(meta, types.FunctionType) and owner is not None and not is_trusted_class(owner):
        return tx.call(tx.wrap(meta, class_source(owner, "__call__")), [cls, *args], kwargs)
    if isinstance(meta, type) and owner is not None:  # as for a TypedDict, whose metaclass has `__call__ = dict`
        return tx.call(tx.wrap(meta, class_source(owner, "__call__")), args, kwargs)
    if meta is not type.__call__ and not issubclass(cls.value, enum.Enum):
        why = "Its metaclass decides what a call means."
        tx.break_graph("MD211", f"{an(cls.value.__name__)} is created", why=why)
    return _make_instance(tx, cls, args, kwargs)


@registry.method(type, "__call__")
def _call_type(tx: Tracer, cls: ClassVariable, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    return _make_instance(tx, cls, list(args), kwargs)


def _make_instance(
    tx: Tracer, cls: ClassVariable, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
) -> VariableTracker:
    """Does the work of `type.__call__`: `__new__`, then `__init__` if `__new__` returned an instance."""
    value = cls.value
    reason = _reason_against_construction(value)
    if issubclass(value, enum.Enum):
        return _enum_member(tx, cls, *realize_all(args, kwargs))
    if reason is not None:
        tx.break_graph("MD211", f"{an(value.__name__)} is created", why=reason, fix=MAKE_OUTSIDE)
    if lookup_on_class(value, "__del__")[1] is not None:
        _skip_for_finalizer(tx, value)
    new, owner = lookup_on_class(value, "__new__")
    if isinstance(new, staticmethod) and isinstance(new.__func__, types.FunctionType) and owner is not None:
        guard_class_attribute(tx, value, owner, "__new__", new)
        function = tx.wrap(new.__func__, Attr(class_source(owner, "__new__"), "__func__"))
        obj = tx.call(function, [cls, *args], kwargs)
    else:
        obj = tx.call(getattr(value, "__new__"), [cls, *args], kwargs)  # noqa: B009
    if not issubclass(obj.python_type, value):
        return obj
    initializer, owner = lookup_on_class(value, "__init__")
    assert owner is not None
    guard_class_attribute(tx, value, owner, "__init__", initializer)
    bound = bind(tx, initializer, owner, obj, value, "__init__")
    assert bound is not None
    if owner is object and new is not object.__dict__["__new__"]:
        return obj  # object.__init__ accepts the arguments of a class's own `__new__`
    result = tx.call(bound, args, kwargs)
    if not isinstance(result, ConstantVariable) or result.value is not None:
        tx.raises(TypeError(f"__init__() should return None, not '{result.python_type.__name__}'"), exact=True)
    return obj


def _reason_against_construction(cls: type) -> str | None:
    for base, reason in _NOT_CONSTRUCTED:
        if issubclass(cls, base):
            return reason
    if issubclass(cls, BaseException):
        if not can_make(cls):
            return HAS_OWN_FIELDS
    elif not is_made_at_run_time(cls) and cls not in (types.SimpleNamespace, object):
        return "It is not written in Python, and minidynamo does not know it."
    return None


def _skip_for_finalizer(tx: Tracer, cls: type) -> NoReturn:
    """Skips the frame that makes an object with `__del__`; inside a callee, breaks the graph instead."""
    what = f"an object with `__del__` is created: {an(cls.__name__)}"
    why = "The program observes when the object dies."
    if len(tx.frames) == 1:
        raise SkipFrame(Diagnostic("MD211", what, why=why, where=tx.frames[0].location))
    tx.break_graph("MD211", what, why=why)


def _enum_member(
    tx: Tracer, cls: ClassVariable, args: list[VariableTracker], kwargs: dict[str, VariableTracker]
) -> VariableTracker:
    members: type[enum.Enum] = cls.value
    name = members.__name__
    if not members.__members__:
        why = "While tracing, only class statements and namedtuple create classes."
        tx.break_graph("MD241", f"making an enum of {name}", why=why, fix="Define it outside of the compiled function.")
    try:
        values = [as_constant(arg) for arg in args]
        named = {key: as_constant(value) for key, value in kwargs.items()}
    except NotConstant:
        tx.break_graph("MD208", f"{name}() is called with a value that is only known when the program runs")
    is_usual = len(args) + len(kwargs) == 1 and {*kwargs} <= {"value"}
    if has_own_missing(members) and not (is_usual and is_value_of(members, *values, *named.values())):
        tx.break_graph("MD211", f"{an(name)} is created", why="Its own `_missing_` maps values to members.")
    try:
        return from_constant(members(*values, **named))
    except ValueError as error:
        tx.raises(error, exact=True)
    except TypeError as error:
        tx.raises(error)


def is_value_of(cls: type[enum.Enum], value: Any) -> bool:
    """Returns whether an enum has a member with this value, so that `_missing_` is not called."""
    if type(value) is cls:
        return True
    try:
        return value in cls._value2member_map_
    except TypeError:
        return any(member.value == value for member in cls)


def checked_class(
    tx: Tracer, new: Callable[..., object], cls: VariableTracker, count: int = 0, keywords: Iterable[str] = ()
) -> type:
    """Returns the class `cls` for a call of `new`, the `__new__` of a built-in class; raises Python's error if `new`
    refuses the class.

    The check constructs a real instance. `count` and `keywords` describe further arguments, for a `new` that checks
    their number."""
    if not isinstance(cls, ClassVariable):
        tx.raises(TypeError("__new__(X): X is not a type object"))
    value = cls.value
    if lookup_on_class(value, "__del__")[1] is not None:
        _skip_for_finalizer(tx, value)
    try:
        new(value, *(None,) * count, **dict.fromkeys(keywords))
    except TypeError as error:
        tx.raises(error, exact=True)
    return value


@registry.function(object.__new__)
@registry.accepts_lazy("args", "kwargs")
def _new_object(
    tx: Tracer, cls: VariableTracker, /, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    value = checked_class(tx, object.__new__, cls, len(args), kwargs)
    return (ModuleVariable if issubclass(value, torch.nn.Module) else ObjectVariable)(None, value)


@registry.function(tuple.__new__)
def _new_tuple(tx: Tracer, cls: VariableTracker, items: VariableTracker | None = None, /) -> VariableTracker:
    value = checked_class(tx, tuple.__new__, cls)
    unpacked = [] if items is None else unpack_lazy(tx, items)
    if value is tuple or is_plain_namedtuple(value):
        return TupleVariable(unpacked, value)
    return ObjectVariable(None, value, TupleVariable(unpacked))


def _register_mutable(base: type, make: Callable[[type], VariableTracker | None]) -> None:
    """Registers the `__new__` of a mutable class whose instances are filled by `__init__`.

    `make` returns the storage of a new instance of a class, or None if instances have attributes only."""

    @registry.function(base.__new__)
    @registry.accepts_lazy("args", "kwargs")
    def new(tx: Tracer, cls: VariableTracker, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        value = checked_class(tx, base.__new__, cls)
        storage = make(value)
        return storage if storage is not None and value is base else ObjectVariable(None, value, storage)


_register_mutable(types.SimpleNamespace, lambda cls: None)
_register_mutable(list, lambda cls: ListVariable([]))
_register_mutable(dict, lambda cls: DictVariable({}, storage_class(cls)))
_register_mutable(set, lambda cls: SetVariable({}))
_register_mutable(collections.deque, lambda cls: ListVariable([], collections.deque))


def _register_immutable(base: type) -> None:
    """Registers the `__new__` of an immutable built-in class; instances of subclasses store the plain value."""

    @registry.function(base.__new__)
    def new(tx: Tracer, cls: VariableTracker, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        value = checked_class(tx, base.__new__, cls)
        plain = tx.call(base, args, kwargs)
        return plain if value is base else ObjectVariable(None, value, specialized(plain))


for _base in (frozenset, int, float, complex, str, bytes):
    _register_immutable(_base)


@registry.method(object, "__init__", "__init_subclass__")
def _init_object(
    tx: Tracer, obj: VariableTracker, /, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    if args or kwargs:
        tx.raises(TypeError(f"{obj.python_type.__name__}() takes no arguments"))
    return ConstantVariable(None)
