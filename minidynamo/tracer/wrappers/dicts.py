"""Owns how dicts from outside are tracked: entry by entry, also those of users' subclasses and those that tensors key.

Reading, guarding and changing entries is up to `tracer/lazy/lazy_dicts.py`.
"""

from __future__ import annotations

import collections
import functools
import gc
import types
from collections.abc import Sequence
from typing import Any

import torch

from minidynamo.compat import GLOBAL_HOOKS
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import (
    HOOK_TABLES,
    Attr,
    Computed,
    Constant,
    DictKeys,
    DictValues,
    InstanceAttr,
    Item,
    Source,
)
from minidynamo.tracer.attributes import instance_dict
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.lazy.lazy_dicts import LazyDict, TableReader
from minidynamo.tracer.records.constants import key_of
from minidynamo.tracer.records.registry import subclass_wrapper, wrapper
from minidynamo.tracer.wrap import guard_names, wrap
from minidynamo.tracer.wrappers.contents import LARGEST_CONTAINER, dict_key, is_key, places_in, size_of
from minidynamo.tracer.wrappers.objects import opaque
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictKey, DictVariable, storage_class
from minidynamo.variables.objects import ObjectVariable

_TENSOR_KEYS = {torch.Tensor, torch.nn.Parameter}


@wrapper(dict, collections.OrderedDict, collections.defaultdict, types.MappingProxyType)
@subclass_wrapper(dict)
def _dict(graph: OutputGraph, value: Any, source: Source) -> VariableTracker:
    cls = type(value)
    if cls is dict and "__builtins__" in value:  # globals: each item is a variable, two ways to write one thing
        return opaque(graph, value, source)
    if cls is types.MappingProxyType and type(gc.get_referents(value)[0]) not in (dict, collections.OrderedDict):
        return opaque(graph, value, source)  # of a mapping whose class may run code of its own
    owner = collections.OrderedDict if issubclass(cls, collections.OrderedDict) else dict
    raw = [*dict.__iter__(value)] if issubclass(cls, dict) else [*value]
    plain = cls in (dict, collections.defaultdict, collections.OrderedDict) and 0 < len(raw) <= LARGEST_CONTAINER
    kinds = {type(key) for key in raw}
    by_place = plain and kinds <= _TENSOR_KEYS | {str} and bool(kinds & _TENSOR_KEYS)
    numbered = plain and kinds == {int} and (_is_hook_table(graph, source) or any(value is t for t in GLOBAL_HOOKS))
    # nn.Module makes its tables of hooks itself, and there are many of them: that they are empty is all that matters.
    if raw or not _is_hook_table(graph, source):
        graph.guard(source, GuardKind.TYPE, cls)
    if len(raw) > LARGEST_CONTAINER or not (by_place or all(map(is_key, raw))):
        return opaque(graph, value, source)
    if owner is collections.OrderedDict:  # only now: to give its keys in order, it asks each for its hash
        raw = [*owner.__iter__(value)]
    guard_names(graph, cls)
    builtin = cls is storage_class(cls)
    if graph.values.is_namespace(value):
        return opaque(graph, value, source)  # each item is an attribute: two ways to write one thing
    if not builtin and instance_dict(value) is value:
        graph.guard(Attr(source, "__dict__"), GuardKind.SAME_OBJECT, source)
    elif not builtin and cls.__dictoffset__:
        graph.guard(source, GuardKind.DISTINCT_OBJECTS, (Attr(source, "__dict__"),))
    storage = DictVariable({}, storage_class(cls), source=source)
    storage.attributes = instance_dict(value) if builtin else None
    variable: VariableTracker = storage if builtin else ObjectVariable(value, cls, storage, source=source)
    graph.values.remember(value, variable)
    if numbered:
        storage.items = _numbered(graph, value, source, raw)
    else:
        storage.items = _entries(graph, value, source, raw, owner if issubclass(cls, dict) else None, builtin, by_place)
    if issubclass(cls, collections.defaultdict):
        storage.default_factory = wrap(graph, value.default_factory, Attr(source, "default_factory"))
    return variable


def _entries(
    graph: OutputGraph,
    value: Any,
    source: Source,
    raw: Sequence[Any],
    owner: type[dict[Any, Any]] | None,
    exact: bool,
    by_place: bool,
) -> LazyDict:
    """The contents of a dict, to be tracked when the program asks for them.

    `by_place`: the keys are tensors, each of which is itself an input, and strings among them: they are known by their
    places, so that other tensors may be there at the next call.
    """
    read = value.__getitem__ if owner is None else functools.partial(dict.__getitem__, value)
    place = places_in(source, owner or dict, exact or owner is None)
    has = value.__contains__ if owner is None else functools.partial(dict.__contains__, value)
    keys: Source = DictKeys(source)
    if owner is not None and type(value).__iter__ is not owner.__iter__:
        keys = DictKeys(Computed("{0}({1})", (Constant(owner.__iter__, "keys_of"), source)))
    positions = {id(key): position for position, key in enumerate(raw)} if by_place else {}

    def key_at(key: object, position: int) -> DictKey:
        if not by_place:
            return dict_key(graph, key, Item(keys, position))
        known = wrap(graph, key, Item(keys, position))
        if type(key) in _TENSOR_KEYS:
            graph.identity_keys[known] = None
        return key_of(known)

    def place_of(key: object) -> Source:
        return Item(DictValues(source), positions[id(key)]) if type(key) in _TENSOR_KEYS else place(key)

    size = size_of(source, dict, exact or owner is None)
    tracker = functools.partial(wrap, graph)
    # The learning rate in an optimizer's group of parameters is there to be changed.
    if type(value) is dict and "params" in value and type(value.get("lr")) is float:
        graph.shapes.expect_change(place("lr"))
    kind = GuardKind.LENGTH if by_place else GuardKind.DICT_KEYS
    reader = TableReader((*raw,), size, read, place_of if by_place else place, key_at, tracker, has, kind)
    return LazyDict(graph, source, reader)


def _numbered(graph: OutputGraph, value: Any, source: Source, raw: Sequence[int]) -> LazyDict:
    """The contents of a table of hooks, whose keys torch has counted: a hook that is removed and registered anew has
    another one. They are known by their places, and matter where the program asks for one."""
    keys, values = DictKeys(source), DictValues(source)

    def key_at(key: int, position: int) -> DictKey:
        place = Item(keys, position)
        graph.guard(place, GuardKind.TYPE, int)
        return DictKey(
            key, ConstantVariable(key, source=place, on_read=graph.guard_when_asked(place, GuardKind.EQUALS, key))
        )

    size, place = size_of(source, dict, True), places_in(source, type(value), True)
    wrapped = functools.partial(wrap, graph)
    at = functools.partial(Item, values)
    reader = TableReader(
        (*raw,), size, value.__getitem__, place, key_at, wrapped, value.__contains__, GuardKind.LENGTH, at
    )
    return LazyDict(graph, source, reader)


def _is_hook_table(graph: OutputGraph, source: Source) -> bool:
    if not isinstance(source, InstanceAttr) or source.name not in HOOK_TABLES:
        return False
    owner = graph.known(source.of)
    return owner is not None and issubclass(owner.python_type, torch.nn.Module)
