"""Owns how dicts from outside are tracked: entry by entry, also those of users' subclasses and those that tensors key.

Reading, guarding and changing entries is up to `outside_items.py`.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Sequence
from typing import Any

import torch

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
from minidynamo.tracer.constants import key_of
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.outside_items import OutsideTable, TableReader
from minidynamo.tracer.registry import subclass_wrapper, wrapper
from minidynamo.tracer.wrap import guard_names, wrap
from minidynamo.tracer.wrappers.contents import LARGEST_CONTAINER, dict_key, is_key, places_in, size_of
from minidynamo.tracer.wrappers.objects import opaque
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import DictKey, DictVariable, storage_class
from minidynamo.variables.objects import ObjectVariable

_TENSOR_KEYS = {torch.Tensor, torch.nn.Parameter}


@wrapper(dict, collections.OrderedDict, collections.defaultdict, types.MappingProxyType)
@subclass_wrapper(dict)
def _dict(graph: OutputGraph, value: Any, source: Source) -> VariableTracker:
    cls = type(value)
    if cls is dict and "__builtins__" in value:  # globals: each item is a variable, two ways to write one thing
        return opaque(graph, value, source)
    owner = collections.OrderedDict if issubclass(cls, collections.OrderedDict) else dict
    raw = [*dict.__iter__(value)] if issubclass(cls, dict) else [*value]
    plain = cls in (dict, collections.defaultdict, collections.OrderedDict) and 0 < len(raw) <= LARGEST_CONTAINER
    kinds = {type(key) for key in raw}
    if plain and kinds <= _TENSOR_KEYS | {str} and kinds & _TENSOR_KEYS:
        return _dict_of_tensors(graph, value, source)
    # nn.Module makes its tables of hooks itself, and there are many of them: that they are empty is all that matters.
    if raw or not _is_hook_table(graph, source):
        graph.guard(source, GuardKind.TYPE, cls)
    if len(raw) > LARGEST_CONTAINER or not all(map(is_key, raw)):
        return opaque(graph, value, source)
    if owner is collections.OrderedDict:  # only now: to give its keys in order, it asks each for its hash
        raw = [*owner.__iter__(value)]
    guard_names(graph, cls)
    builtin = cls is storage_class(cls)
    if graph.values.is_namespace(value) or (not builtin and instance_dict(value) is value):
        return opaque(graph, value, source)  # each item is an attribute: two ways to write one thing
    if not builtin and cls.__dictoffset__:
        graph.guard(source, GuardKind.DISTINCT_OBJECTS, (Attr(source, "__dict__"),))
    storage = DictVariable({}, storage_class(cls), source=source)
    storage.attributes = instance_dict(value) if builtin else None
    variable: VariableTracker = storage if builtin else ObjectVariable(value, cls, storage, source=source)
    graph.values.remember(value, variable)
    storage.items = _entries(graph, value, source, raw, owner if issubclass(cls, dict) else None, builtin)
    if issubclass(cls, collections.defaultdict):
        storage.default_factory = wrap(graph, value.default_factory, Attr(source, "default_factory"))
    return variable


def _entries(
    graph: OutputGraph, value: Any, source: Source, raw: Sequence[Any], owner: type[dict[Any, Any]] | None, exact: bool
) -> OutsideTable:
    """The contents of a dict, to be tracked when the program asks for them."""
    read = value.__getitem__ if owner is None else functools.partial(dict.__getitem__, value)
    place = places_in(source, owner or dict, exact or owner is None)
    has = value.__contains__ if owner is None else functools.partial(dict.__contains__, value)
    keys: Source = DictKeys(source)
    if owner is not None and type(value).__iter__ is not owner.__iter__:
        keys = DictKeys(Computed("{0}({1})", (Constant(owner.__iter__, "keys_of"), source)))

    def key_at(key: object, position: int) -> DictKey:
        return dict_key(graph, key, Item(keys, position))

    size = size_of(source, dict, exact or owner is None)
    tracker = functools.partial(wrap, graph)
    # The learning rate in an optimizer's group of parameters is there to be changed.
    if type(value) is dict and "params" in value and type(value.get("lr")) is float:
        graph.shapes.expect_change(place("lr"))
    reader = TableReader((*raw,), size, read, place, key_at, tracker, has, GuardKind.DICT_KEYS)
    return OutsideTable(graph, source, reader)


def _dict_of_tensors(graph: OutputGraph, value: dict[Any, Any], source: Source) -> VariableTracker:
    """A dict whose keys are tensors, each of which is itself an input, and strings among them: its keys are known by
    their places."""
    graph.guard(source, GuardKind.TYPE, type(value))
    graph.guard(source, GuardKind.LENGTH, len(value))
    variable = DictVariable({}, type(value), source=source)
    graph.values.remember(value, variable)
    for position, key in enumerate(value):
        known = wrap(graph, key, Item(DictKeys(source), position))
        if type(key) in _TENSOR_KEYS:
            graph.identity_keys[known] = None
        variable.items[key_of(known)] = wrap(graph, value[key], Item(DictValues(source), position))
    if isinstance(value, collections.defaultdict):
        variable.default_factory = wrap(graph, value.default_factory, Attr(source, "default_factory"))
    return variable


def _is_hook_table(graph: OutputGraph, source: Source) -> bool:
    if not isinstance(source, InstanceAttr) or source.name not in HOOK_TABLES:
        return False
    owner = graph.known(source.of)
    return owner is not None and issubclass(owner.python_type, torch.nn.Module)
