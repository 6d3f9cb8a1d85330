"""Owns what the wrappers of containers share: where contents are read, and which keys can be tracked.

When they are read is up to the files `outside_*.py`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sized
from typing import Any

import torch

from minidynamo.compat import OpOverload, OpOverloadPacket
from minidynamo.core.names import name_of
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Computed, Constant, Item, Referent, Source, StorageItem, stand_in
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.records.constants import has_own, is_constant_value, key_of
from minidynamo.tracer.records.copies import can_be_two, is_interned
from minidynamo.tracer.wrap import wrap
from minidynamo.tracer.wrappers.callables import has_receiver
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictKey, TupleVariable

LARGEST_CONTAINER = 20_000  # what holds more is opaque


def size_of(source: Source, owner: type[Sized], exact: bool) -> Computed:
    """Where the length of a container can be read, whatever its class defines."""
    function = len if exact else owner.__len__
    return Computed("{0}({1})", (Constant(function, "len"), source))


def places_in(source: Source, owner: type, exact: bool) -> Callable[[Any], Source]:
    """Where a container has what it holds at a position or under a key, whatever its class defines."""

    def place(key: Any) -> Source:
        key = stand_in(key)
        return Item(source, key) if exact else StorageItem(source, key, owner)

    return place


def is_key(key: object) -> bool:
    """Whether it can be tracked as the key of a dict from outside, or as an element of a set."""
    if is_constant_value(key):
        return not has_own(type(key), "__eq__", "__hash__")
    if type(key) is tuple:
        return all(map(is_key, key))
    cls = type(key)
    if cls is types.BuiltinFunctionType:
        return not has_receiver(key)
    if cls in (OpOverload, OpOverloadPacket):  # equal only to themselves, whatever their hash is made of
        return True
    plain = cls.__hash__ is object.__hash__ and cls.__eq__ is object.__eq__
    return plain and not issubclass(cls, torch.Tensor)


def dict_key(graph: OutputGraph, key: object, source: Source | None) -> DictKey:
    """The key of a dict from outside, or an element of a set, that can be read at `source`; the guard on all of them
    covers it."""
    if is_constant_value(key):
        if source is None or not can_be_two(key):
            return key_of(ConstantVariable(key))
        if not isinstance(key, str) or not is_interned(key):
            return key_of(ConstantVariable(key, source=source))
        told = functools.partial(graph.guard, source, GuardKind.SAME_OBJECT, Constant(key, "name"))
        return key_of(ConstantVariable(key, on_identity=told))
    if type(key) is tuple:
        places = [None if source is None else Item(source, position) for position in range(len(key))]
        items = [dict_key(graph, part, place).variable for part, place in zip(key, places)]
        return key_of(TupleVariable(items, source=source))
    if type(key) is types.BuiltinFunctionType and source is not None:
        graph.guard(source, GuardKind.IDENTITY, key)  # another one may be equal
    known = stand_in(key)
    named = known if isinstance(known, Referent) else Constant(key, name_of(key))
    variable = wrap(graph, key, named)
    graph.identity_keys[variable] = None
    return key_of(variable)
