"""Owns methods of built-in containers that treat instances of subclasses differently from plain containers.

Most methods that a subclass does not override work on the instance's storage as on a plain container;
`tracer/calls/call.py` forwards these. The methods in this module inspect the instance's class, call its other methods,
or make a new instance.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from minidynamo.tracer.attributes import class_has
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.dicts import checked_factory, fill
from minidynamo.tracer.handlers.values import expect_key, none
from minidynamo.tracer.polyfills.containers import dict_update, ordered_copy, ordered_ior, ordered_setdefault
from minidynamo.tracer.records import registry
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import DictVariable, ListVariable, SetVariable
from minidynamo.variables.objects import ObjectVariable

OrderedDict = collections.OrderedDict
defaultdict = collections.defaultdict
deque = collections.deque


def _class_of(tx: Tracer, obj: VariableTracker) -> VariableTracker:
    return tx.call(type, [obj])


def _storage_dict(obj: ObjectVariable) -> DictVariable:
    assert isinstance(obj.storage, DictVariable)
    return obj.storage


# --- dicts --------------------------------------------------------------------------------------------------------


def _getitem(tx: Tracer, obj: ObjectVariable, key: VariableTracker) -> VariableTracker:
    storage, found = _storage_dict(obj), expect_key(tx, key)
    if found in storage.items:
        return storage.items.lazy_at(found)
    if class_has(obj.cls, "__missing__"):
        return tx.call_method(obj, "__missing__", [key], lazy=True)
    return tx.call_method(storage, "__getitem__", [key])  # raises


for _cls in (dict, OrderedDict, defaultdict):
    registry.subclass_method(_cls, "__getitem__")(_getitem)


def _via_instance(polyfill: Callable[..., Any]) -> registry.Handler:
    """Returns a handler that calls a polyfill: OrderedDict calls the instance's own `__setitem__` and `__getitem__`."""

    @registry.accepts_lazy("args", "kwargs")
    def call(tx: Tracer, obj: ObjectVariable, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        return tx.call(polyfill, [obj, *args], kwargs, lazy=True)

    return call


registry.subclass_method(OrderedDict, "update", "__init__")(_via_instance(dict_update))
registry.subclass_method(OrderedDict, "setdefault")(_via_instance(ordered_setdefault))
registry.subclass_method(OrderedDict, "__ior__")(_via_instance(ordered_ior))
registry.subclass_method(OrderedDict, "copy")(_via_instance(ordered_copy))


@registry.subclass_method(defaultdict, "copy", "__copy__")
def _copy_default(tx: Tracer, obj: ObjectVariable) -> VariableTracker:
    return tx.call(_class_of(tx, obj), [_storage_dict(obj).default_factory or none(), obj])


@registry.method(defaultdict, "__init__")
@registry.accepts_lazy("kwargs")
def _init_default(
    tx: Tracer,
    self: DictVariable,
    default_factory: VariableTracker | None = None,
    iterable: VariableTracker | None = None,
    /,
    **kwargs: VariableTracker,
) -> VariableTracker:
    self.default_factory = checked_factory(tx, default_factory)
    fill(tx, self, () if iterable is None else (iterable,), kwargs)
    tx.side_effects.contents_changed(self)
    return none()


@registry.method(OrderedDict, "__init__")
@registry.accepts_lazy("kwargs")
def _init_ordered(
    tx: Tracer, self: DictVariable, iterable: VariableTracker | None = None, /, **kwargs: VariableTracker
) -> VariableTracker:
    fill(tx, self, () if iterable is None else (iterable,), kwargs)
    tx.side_effects.contents_changed(self)
    return none()


# --- sets and deques -----------------------------------------------------------------------------------------------


def _new_deque(method: str) -> registry.Handler:
    def make(tx: Tracer, obj: ObjectVariable, *args: VariableTracker) -> VariableTracker:
        assert isinstance(obj.storage, ListVariable)
        result = tx.call_method(obj.storage, method, args)
        return tx.call(_class_of(tx, obj), [result]) if isinstance(result, ListVariable) else result

    return make


for _name in ("copy", "__copy__", "__add__", "__mul__"):
    registry.subclass_method(deque, _name)(_new_deque(_name))


@registry.method(set, "__init__")
def _init_set(tx: Tracer, self: SetVariable, iterable: VariableTracker | None = None, /) -> VariableTracker:
    tx.call(set.clear, [self])
    if iterable is not None:
        tx.call(set.update, [self, iterable])
    return none()


@registry.method(deque, "__init__")
def _init_deque(
    tx: Tracer, self: ListVariable, iterable: VariableTracker | None = None, maxlen: VariableTracker | None = None
) -> VariableTracker:
    contents = tx.call(deque, [arg for arg in (iterable, maxlen) if arg is not None])
    assert isinstance(contents, ListVariable)
    if contents.maxlen is not None:
        why = "A plain deque with `maxlen` is tracked."
        tx.break_graph("MD241", "an instance of a subclass of deque is created with `maxlen`", why=why)
    self.items = contents.items
    tx.side_effects.contents_changed(self)
    return none()
