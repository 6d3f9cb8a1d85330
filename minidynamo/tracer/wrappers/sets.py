"""Owns the trackers of external sets and frozensets, subclasses included.

Reading, guarding and changing elements is not here (`tracer/lazy/lazy_dicts.py`)."""

from __future__ import annotations

import functools
from collections.abc import Set
from typing import Any

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Computed, Constant, Item, Source, source_key
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.lazy.lazy_dicts import LazyDict, TableReader
from minidynamo.tracer.records.registry import subclass_wrapper, wrapper
from minidynamo.tracer.wrap import lazy
from minidynamo.tracer.wrappers.contents import dict_key, is_key, size_of
from minidynamo.tracer.wrappers.objects import instance_of_subclass, opaque
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import DictKey, SetVariable


@wrapper(set, frozenset)
def _set(graph: OutputGraph, value: Any, source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, type(value))
    items = (*value,)
    if not all(map(is_key, items)):
        return opaque(graph, value, source)
    variable = SetVariable(_members(graph, value, source, items, type(value)), type(value), value, source=source)
    graph.values.remember(value, variable)
    return variable


@subclass_wrapper(set, frozenset)
def _set_subclass(graph: OutputGraph, value: Any, source: Source) -> VariableTracker:
    base = set if isinstance(value, set) else frozenset
    items = (*base.__iter__(value),)
    if not all(map(is_key, items)):
        return opaque(graph, value, source)
    variable = instance_of_subclass(graph, value, source)
    variable.storage = SetVariable(_members(graph, value, source, items, base), base, source=source)
    return variable


def elements_of(found: Set[Any]) -> dict[Any, Any]:
    """Returns a dict from each element's value to the element of the set itself."""
    base: Any = set if isinstance(found, set) else frozenset
    return {element: element for element in base.__iter__(found)}


def _members(graph: OutputGraph, value: Any, source: Source, items: tuple[Any, ...], owner: type[Set[Any]]) -> LazyDict:
    """Returns the elements of a set, to be tracked when the program reads them."""
    has = functools.partial(owner.__contains__, value)
    elements = Computed("{0}({1})", (Constant(elements_of, "elements_of"), source))

    def element(key: object, position: int) -> DictKey:
        return dict_key(graph, key, Item(elements, source_key(key)))

    size = size_of(source, owner, type(value) is owner)
    tracker = functools.partial(lazy, graph)
    reader = TableReader(items, size, lambda key: key, lambda _: None, element, tracker, has, GuardKind.SET_ITEMS)
    return LazyDict(graph, source, reader)
