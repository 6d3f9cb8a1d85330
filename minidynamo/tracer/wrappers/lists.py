"""Owns the trackers of external lists and deques: element by element, or as a single input of the graph.

Reading, guarding and changing elements is not here (`tracer/lazy/lazy_lists.py`)."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any

import torch

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, Item, Source
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.lazy.lazy_lists import LazyList, ListReader
from minidynamo.tracer.records.constants import is_constant_value
from minidynamo.tracer.records.registry import subclass_wrapper, wrapper
from minidynamo.tracer.wrap import constant, guard_alias, lazy
from minidynamo.tracer.wrappers.contents import LARGEST_CONTAINER, item_source, size_of
from minidynamo.tracer.wrappers.objects import instance_of_subclass, is_plain_tensor, opaque
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import ListVariable


def _elements(
    graph: OutputGraph,
    value: Any,
    source: Source,
    owner: type[list[Any] | collections.deque[Any]],
    wrap_all: Callable[[], list[VariableTracker]] | None = None,
) -> LazyList:
    """Returns the elements of a list or deque, to be tracked when the program reads them."""
    exact = type(value) is owner
    source_at, size = item_source(source, owner, exact), size_of(source, owner, exact)
    maxlen = object.__getattribute__(value, "maxlen") if owner is collections.deque else None
    reader = ListReader(value, owner, size, source_at, functools.partial(lazy, graph), wrap_all)
    return LazyList(graph, source, reader, maxlen)


@wrapper(list)
def _list(graph: OutputGraph, value: list[Any], source: Source) -> VariableTracker:
    if len(value) > LARGEST_CONTAINER:
        return opaque(graph, value, source)
    graph.guard(source, GuardKind.TYPE, type(value))
    variable = ListVariable([], source=source)
    graph.values.remember(value, variable)
    at_once = graph.inputs.is_argument(source) and _is_list_of_tensors(value, graph.inputs.is_donated(source))
    wrap_all = functools.partial(_list_input, graph, value, variable, source) if at_once else None
    if at_once and not graph.inputs.is_donated(source):
        graph.inputs.may_become_list_input(variable)
    variable.items = _elements(graph, value, source, list, wrap_all)
    return variable


def _is_list_of_tensors(value: list[Any], is_donated: bool) -> bool:
    """Returns whether a list is passed to the graph as a whole.

    Numbers and texts in any other list are guarded when they are read."""
    tensors = sum(type(item) in (torch.Tensor, torch.nn.Parameter) and is_plain_tensor(item) for item in value)
    constants = sum(is_constant_value(item) if is_donated else item is None for item in value)
    return tensors > 0 and tensors + constants == len(value)


def _list_input(graph: OutputGraph, value: list[Any], variable: ListVariable, source: Source) -> list[VariableTracker]:
    """Adds a placeholder for the whole list; elements other than tensors become guarded constants."""
    constants = {k: constant(graph, v, Item(source, k)) for k, v in enumerate(value) if is_constant_value(v)}
    items = graph.inputs.list_of_tensors(value, variable, constants)
    for position, (item, tracker) in enumerate(zip(value, items)):
        if position not in constants:
            item_at = Item(source, position)
            graph.guard(item_at, GuardKind.TYPE, type(item))
            guard_alias(graph, item, tracker, item_at)
    variable.original = tuple(items)
    return items


@subclass_wrapper(list)
def _list_subclass(graph: OutputGraph, value: list[Any], source: Source) -> VariableTracker:
    variable = instance_of_subclass(graph, value, source)
    variable.storage = ListVariable(_elements(graph, value, source, list), source=source)
    return variable


@wrapper(collections.deque)
def _deque(graph: OutputGraph, value: collections.deque[Any], source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, type(value))
    graph.guard(Attr(source, "maxlen"), GuardKind.EQUALS, value.maxlen)
    items = _elements(graph, value, source, collections.deque)
    variable = ListVariable(items, collections.deque, maxlen=value.maxlen, source=source)
    graph.values.remember(value, variable)
    return variable


@subclass_wrapper(collections.deque)
def _deque_subclass(graph: OutputGraph, value: collections.deque[Any], source: Source) -> VariableTracker:
    deque = collections.deque
    maxlen = vars(deque)["maxlen"]
    if getattr(type(value), "maxlen", None) is not maxlen:
        return opaque(graph, value, source)
    longest = object.__getattribute__(value, "maxlen")
    variable = instance_of_subclass(graph, value, source)
    graph.guard(Attr(source, "maxlen"), GuardKind.EQUALS, longest)
    items = _elements(graph, value, source, deque)
    variable.storage = ListVariable(items, deque, maxlen=longest, source=source)
    return variable
