"""Owns the parts that wrappers of containers share: sources of contents, and the keys that can be tracked.

Reading the contents is not here (`tracer/lazy/`)."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sized
from typing import Any

import torch

from minidynamo.compat import OpOverload, OpOverloadPacket
from minidynamo.core.names import name_of
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Computed, Constant, Item, Referent, Source, StorageItem, source_key
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.records.constants import is_constant_value, key_of, overrides_method
from minidynamo.tracer.records.copies import is_interned, may_be_distinct
from minidynamo.tracer.wrap import wrap
from minidynamo.tracer.wrappers.callables import has_receiver
from minidynamo.variables.base import ConstantVariable
from minidynamo.variables.containers import DictKey, TupleVariable

LARGEST_CONTAINER = 20_000  # a larger container is opaque


def size_of(source: Source, owner: type[Sized], exact: bool) -> Computed:
    """Returns the source of a container's length, which calls no method of a subclass."""
    function = len if exact else owner.__len__
    return Computed("{0}({1})", (Constant(function, "len"), source))


def item_source(source: Source, owner: type, exact: bool) -> Callable[[Any], Source]:
    """Returns a function from a position or key to the source of the item, which calls no method of a subclass."""

    def source_at(key: Any) -> Source:
        key = source_key(key)
        return Item(source, key) if exact else StorageItem(source, key, owner)

    return source_at


def is_key(key: object) -> bool:
    """Returns whether the value can be tracked as a key of an external dict or set."""
    if is_constant_value(key):
        return not overrides_method(type(key), "__eq__", "__hash__")
    if type(key) is tuple:
        return all(map(is_key, key))
    cls = type(key)
    if cls is types.BuiltinFunctionType:
        return not has_receiver(key)
    if cls in (OpOverload, OpOverloadPacket):  # equal only to themselves, whatever their hash
        return True
    plain = cls.__hash__ is object.__hash__ and cls.__eq__ is object.__eq__
    return plain and not issubclass(cls, torch.Tensor)


def dict_key(graph: OutputGraph, key: object, source: Source | None) -> DictKey:
    """Returns the key of an external dict or set that can be read at `source`; a guard on all keys covers it."""
    if is_constant_value(key):
        if source is None or not may_be_distinct(key):
            return key_of(ConstantVariable(key))
        if not isinstance(key, str) or not is_interned(key):
            return key_of(ConstantVariable(key, source=source))
        guard_identity = functools.partial(graph.guard, source, GuardKind.SAME_OBJECT, Constant(key, "name"))
        return key_of(ConstantVariable(key, on_identity=guard_identity))
    if type(key) is tuple:
        item_sources = [None if source is None else Item(source, position) for position in range(len(key))]
        items = [dict_key(graph, part, source_at).variable for part, source_at in zip(key, item_sources)]
        return key_of(TupleVariable(items, source=source))
    if type(key) is types.BuiltinFunctionType and source is not None:
        graph.guard(source, GuardKind.IDENTITY, key)  # a different object may be equal
    known = source_key(key)
    named = known if isinstance(known, Referent) else Constant(key, name_of(key))
    variable = wrap(graph, key, named)
    graph.identity_keys[variable] = None
    return key_of(variable)
