"""Owns how lists and deques from outside are tracked: element by element, or as one input of the graph.

Reading, guarding and changing elements is up to `tracer/lazy/lazy_lists.py`.
"""

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
from minidynamo.tracer.wrap import constant, guard_alias, wrap
from minidynamo.tracer.wrappers.contents import LARGEST_CONTAINER, places_in, size_of
from minidynamo.tracer.wrappers.objects import instance_of_subclass, opaque
from minidynamo.tracer.wrappers.tensors import is_plain_tensor
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import ListVariable


def _elements(
    graph: OutputGraph,
    value: Any,
    source: Source,
    owner: type[list[Any] | collections.deque[Any]],
    together: Callable[[], list[VariableTracker]] | None = None,
) -> LazyList:
    """The elements of a list or deque, to be tracked when the program asks for them."""
    exact = type(value) is owner
    read = functools.partial(owner.__getitem__, value)
    place, size = places_in(source, owner, exact), size_of(source, owner, exact)
    maxlen = object.__getattribute__(value, "maxlen") if owner is collections.deque else None
    reader = ListReader(owner.__len__(value), size, read, place, functools.partial(wrap, graph), together)
    return LazyList(graph, source, reader, maxlen)


@wrapper(list)
def _list(graph: OutputGraph, value: list[Any], source: Source) -> VariableTracker:
    if len(value) > LARGEST_CONTAINER:
        return opaque(graph, value, source)
    graph.guard(source, GuardKind.TYPE, type(value))
    variable = ListVariable([], source=source)
    graph.values.remember(value, variable)
    at_once = graph.inputs.is_argument(source) and _is_list_of_tensors(value, graph.inputs.is_stolen(source))
    together = functools.partial(_list_input, graph, value, variable, source) if at_once else None
    if at_once and not graph.inputs.is_stolen(source):
        graph.inputs.may_come_as_one(variable)
    variable.items = _elements(graph, value, source, list, together)
    return variable


def _is_list_of_tensors(value: list[Any], is_stolen: bool) -> bool:
    """Whether a list is handed to the graph as a whole. Numbers and text in others are guarded when they are read."""
    tensors = sum(type(item) in (torch.Tensor, torch.nn.Parameter) and is_plain_tensor(item) for item in value)
    constants = sum(is_constant_value(item) if is_stolen else item is None for item in value)
    return tensors > 0 and tensors + constants == len(value)


def _list_input(graph: OutputGraph, value: list[Any], variable: ListVariable, source: Source) -> list[VariableTracker]:
    """One placeholder for the whole list; what is not a tensor in it is a guarded constant."""
    constants = {k: constant(graph, v, Item(source, k)) for k, v in enumerate(value) if is_constant_value(v)}
    items = graph.inputs.list_of_tensors(value, variable, constants)
    for position, (item, tracker) in enumerate(zip(value, items)):
        if position not in constants:
            place = Item(source, position)
            graph.guard(place, GuardKind.TYPE, type(item))
            guard_alias(graph, item, tracker, place)
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
