"""Owns the trackers of external dicts: entry by entry, subclasses and dicts with tensor keys included.

Reading, guarding and changing entries is not here (`tracer/lazy/lazy_dicts.py`)."""

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
from minidynamo.tracer.wrap import guard_names, lazy, wrap
from minidynamo.tracer.wrappers.contents import LARGEST_CONTAINER, dict_key, is_key, item_source, size_of
from minidynamo.tracer.wrappers.objects import opaque
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import DictKey, DictVariable, storage_class
from minidynamo.variables.objects import ObjectVariable

_TENSOR_KEYS = {torch.Tensor, torch.nn.Parameter}


@wrapper(dict, collections.OrderedDict, collections.defaultdict, types.MappingProxyType)
@subclass_wrapper(dict)
def _dict(graph: OutputGraph, value: Any, source: Source) -> VariableTracker:
    cls = type(value)
    if cls is dict and "__builtins__" in value:  # globals: each item is already tracked as a variable
        return opaque(graph, value, source)
    if cls is types.MappingProxyType and type(gc.get_referents(value)[0]) not in (dict, collections.OrderedDict):
        return opaque(graph, value, source)  # of a mapping whose class may run code of its own
    owner = collections.OrderedDict if issubclass(cls, collections.OrderedDict) else dict
    raw = [*dict.__iter__(value)] if issubclass(cls, dict) else [*value]
    plain = cls in (dict, collections.defaultdict, collections.OrderedDict) and 0 < len(raw) <= LARGEST_CONTAINER
    kinds = {type(key) for key in raw}
    by_position = plain and kinds <= _TENSOR_KEYS | {str} and bool(kinds & _TENSOR_KEYS)
    has_hook_ids = plain and kinds == {int} and (_is_hook_table(graph, source) or any(value is t for t in GLOBAL_HOOKS))
    # nn.Module makes its many tables of hooks itself; for an empty table a guard on its length is enough.
    if raw or not _is_hook_table(graph, source):
        graph.guard(source, GuardKind.TYPE, cls)
    if len(raw) > LARGEST_CONTAINER or not (by_position or all(map(is_key, raw))):
        return opaque(graph, value, source)
    if owner is collections.OrderedDict:  # late, because iteration hashes each key
        raw = [*owner.__iter__(value)]
    guard_names(graph, cls)
    builtin = cls is storage_class(cls)
    if graph.values.is_namespace(value):
        return opaque(graph, value, source)  # each item is already tracked as an attribute
    if not builtin and instance_dict(value) is value:
        graph.guard(Attr(source, "__dict__"), GuardKind.SAME_OBJECT, source)
    elif not builtin and cls.__dictoffset__:
        graph.guard(source, GuardKind.DISTINCT_OBJECTS, (Attr(source, "__dict__"),))
    storage = DictVariable({}, storage_class(cls), source=source)
    storage.attributes = instance_dict(value) if builtin else None
    variable: VariableTracker = storage if builtin else ObjectVariable(value, cls, storage, source=source)
    graph.values.remember(value, variable)
    if has_hook_ids:
        storage.items = _hook_entries(graph, value, source, raw)
    else:
        storage.items = _entries(
            graph, value, source, raw, owner if issubclass(cls, dict) else None, builtin, by_position
        )
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
    by_position: bool,
) -> LazyDict:
    """Returns the contents of a dict, to be tracked when the program reads them.

    `by_position`: keys are tensors, each an input of its own, and strings. Tensor keys are identified by position; the
    next call may use other tensors."""
    read = value.__getitem__ if owner is None else functools.partial(dict.__getitem__, value)
    source_at = item_source(source, owner or dict, exact or owner is None)
    has = value.__contains__ if owner is None else functools.partial(dict.__contains__, value)
    keys: Source = DictKeys(source)
    if owner is not None and type(value).__iter__ is not owner.__iter__:
        keys = DictKeys(Computed("{0}({1})", (Constant(owner.__iter__, "keys_of"), source)))
    positions = {id(key): position for position, key in enumerate(raw)} if by_position else {}

    def key_at(key: object, position: int) -> DictKey:
        if not by_position:
            return dict_key(graph, key, Item(keys, position))
        known = wrap(graph, key, Item(keys, position))
        if type(key) in _TENSOR_KEYS:
            graph.identity_keys[known] = None
        return key_of(known)

    def source_of(key: object) -> Source:
        return Item(DictValues(source), positions[id(key)]) if type(key) in _TENSOR_KEYS else source_at(key)

    size = size_of(source, dict, exact or owner is None)
    tracker = functools.partial(lazy, graph)
    # Programs change the learning rate in an optimizer's parameter group.
    if type(value) is dict and "params" in value and type(value.get("lr")) is float:
        graph.shapes.expect_change(source_at("lr"))
    kind = GuardKind.LENGTH if by_position else GuardKind.DICT_KEYS
    reader = TableReader((*raw,), size, read, source_of if by_position else source_at, key_at, tracker, has, kind)
    return LazyDict(graph, source, reader)


def _hook_entries(graph: OutputGraph, value: Any, source: Source, raw: Sequence[int]) -> LazyDict:
    """Returns the contents of a table of hooks, whose keys are torch's hook ids.

    A hook that is removed and registered again gets a new id. So entries are identified by position, and an id is
    guarded only if the program reads it."""
    keys, values = DictKeys(source), DictValues(source)

    def key_at(key: int, position: int) -> DictKey:
        key_source = Item(keys, position)
        graph.guard(key_source, GuardKind.TYPE, int)
        return DictKey(
            key,
            ConstantVariable(key, source=key_source, on_read=graph.guard_on_read(key_source, GuardKind.EQUALS, key)),
        )

    size, source_at = size_of(source, dict, True), item_source(source, type(value), True)
    wrapped = functools.partial(lazy, graph)
    at = functools.partial(Item, values)
    reader = TableReader(
        (*raw,), size, value.__getitem__, source_at, key_at, wrapped, value.__contains__, GuardKind.LENGTH, at
    )
    return LazyDict(graph, source, reader)


def _is_hook_table(graph: OutputGraph, source: Source) -> bool:
    if not isinstance(source, InstanceAttr) or source.name not in HOOK_TABLES:
        return False
    owner = graph.known(source.of)
    return owner is not None and issubclass(owner.python_type, torch.nn.Module)
