"""Owns the trackers of external tuples: plain and named tuples, torch's sizes and results, subclasses.

Reading items is not here (`tracer/lazy/lazy_lists.py`)."""

from __future__ import annotations

import functools
from typing import Any

import torch

from minidynamo.compat import VERSION_INFO
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Source
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.lazy.lazy_lists import LazyList, ListReader
from minidynamo.tracer.records.registry import subclass_wrapper, wrapper
from minidynamo.tracer.wrap import guard_names, lazy
from minidynamo.tracer.wrappers.contents import item_source, size_of
from minidynamo.tracer.wrappers.objects import instance_of_subclass, is_made_in_c, opaque
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import TupleVariable, is_plain_namedtuple


@wrapper(tuple, torch.Size)
@subclass_wrapper(tuple)
def _tuple(graph: OutputGraph, value: tuple[Any, ...], source: Source) -> VariableTracker:
    graph.guard(source, GuardKind.TYPE, type(value))
    if type(value) not in (tuple, torch.Size) and not is_plain_namedtuple(type(value)):
        return _tuple_subclass(graph, value, source)
    guard_names(graph, type(value))  # a namedtuple is no longer plain if its class gets a special method
    variable = TupleVariable(_items(graph, value, source), type(value), source=source)
    graph.values.remember(value, variable)
    return variable


def _items(graph: OutputGraph, value: tuple[Any, ...], source: Source) -> LazyList:
    """Returns the items of a tuple, to be tracked when the program reads them."""
    exact = _is_read_as_tuple(type(value))
    source_at = item_source(source, tuple, exact)
    reader = ListReader(value, tuple, size_of(source, tuple, exact), source_at, functools.partial(lazy, graph))
    return LazyList(graph, source, reader)


def _is_read_as_tuple(cls: type) -> bool:
    """Returns whether reading the items runs no code of a subclass."""
    return all(getattr(cls, name) is getattr(tuple, name) for name in ("__getitem__", "__len__", "__getattribute__"))


def _tuple_subclass(graph: OutputGraph, value: tuple[Any, ...], source: Source) -> VariableTracker:
    if type(value).__module__ == "torch.return_types" or value is VERSION_INFO:
        return _structure(graph, value, source)
    if is_made_in_c(type(value)):  # other structures made in C
        return opaque(graph, value, source)
    variable = instance_of_subclass(graph, value, source)
    variable.storage = TupleVariable(_items(graph, value, source), source=source)
    return variable


def _structure(graph: OutputGraph, value: tuple[Any, ...], source: Source) -> VariableTracker:
    """Wraps the result of `torch.max(x, 1)` and similar functions: a tuple made in C whose items have names."""
    variable = TupleVariable(_items(graph, value, source), type(value), source=source)
    graph.values.remember(value, variable)
    return variable
