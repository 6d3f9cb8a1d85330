"""Owns the objects that lose a reference by a write to an external object: whether a finalizer can see the death, in
this call or in a later call.

Side effects are replayed after the graph. A replayed write frees an object too late for a program that reads the work
of the finalizer. The graph therefore ends before the write. `finalizers.py` handles deaths by locals.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.guards.deaths import (
    any_dying,
    any_has_finalizers,
    has_finalizers,
    has_gradient,
    history_from,
    holds_nothing,
)
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Attr, CellContents, Constant, InstanceAttr, Referent, Source, global_source
from minidynamo.tracer.attributes import instance_dict
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.lazy.lazy_dicts import LazyDict
from minidynamo.tracer.lazy.lazy_lists import EVERYTHING, LazyList, Loss
from minidynamo.tracer.records.side_effects import AttrDeleted, AttrSet, CellSet, ContentsChanged, Effect, GlobalSet
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictVariable, ListVariable, SetVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.tensors import TensorVariable

NOTICED_DEATH = "the program drops an object with `__del__`, or with weak references that have callbacks"

# From this number of losses per container on, a single guard checks all contents.
_MANY = 4


class Losses:
    """The references removed from external objects by the writes of a trace."""

    def __init__(self, graph: OutputGraph) -> None:
        self._graph = graph
        self._seen: set[tuple[Source, object]] = set()
        self._lost: list[Loss] = []

    def has_finalizers(self, effect: Effect) -> bool:
        """Returns whether an effect, not yet in the journal, ends the life of an object with a finalizer. If not, adds
        a guard."""
        owner, losses = _losses(self._graph, effect)
        if owner is None:
            return self._deaths_are_visible(losses)
        new = [loss for loss in losses if loss.key is EVERYTHING or (owner, loss.key) not in self._seen]
        self._seen |= {(owner, loss.key) for loss in new}
        new = [loss for loss in new if not self._is_plain(loss.place)]
        if self._deaths_are_visible(new):
            return True
        container = effect.container if isinstance(effect, ContentsChanged) else None
        items = container.items if isinstance(container, ListVariable | DictVariable | SetVariable) else None
        many = len(new) >= _MANY and isinstance(items, LazyList | LazyDict) and items.none_match(has_finalizers)
        if many or any(loss.key is EVERYTHING for loss in new):
            self._graph.guard(owner, GuardKind.UNNOTICED_DEATH, ())
        else:
            self._guard_each(owner, new)
        return False

    def _guard_each(self, owner: Source, losses: Iterable[Loss]) -> None:
        for loss in losses:
            if loss.place is not None:
                self._graph.guard(owner, GuardKind.UNNOTICED_DEATH, (loss.key,))
            if isinstance(loss.key, Referent):
                self._graph.guard(loss.key, GuardKind.UNNOTICED_DEATH, None)

    def _is_plain(self, place: Source | None) -> bool:
        """Returns whether the guards say that the value at `place` is a constant or a number."""
        known = None if place is None else self._graph.known(place)
        return isinstance(known, ConstantVariable | NumberVariable)

    def _deaths_are_visible(self, losses: Sequence[Loss]) -> bool:
        """Returns whether a finalizer runs for the objects that die with these losses and all earlier losses."""
        new = [value for loss in losses for value in loss.values]
        if any_has_finalizers(new):  # the guard checks the same
            return True
        if all(map(holds_nothing, new)):
            return False
        self._lost += [loss for loss in losses if not all(map(holds_nothing, loss.values))]
        lost = [value for loss in self._lost for value in loss.values]
        return dies_any(self._graph, lost, [loss.place for loss in self._lost], any_has_finalizers)


def dies_any(
    graph: OutputGraph,
    lost: Iterable[object],
    places: Iterable[Source | None],
    predicate: Callable[[list[Any]], bool],
) -> bool:
    """Returns whether `predicate` is True for the objects that die with `lost`, formerly at `places`.

    An object with a source below `places` dies too, although a tracker refers to the object.
    """
    values = [*lost]
    sources = {*places, *map(graph.source_of, values)} - {None}
    surely = {*map(id, values)}

    def dies(part: object) -> bool:
        source = graph.source_of(part)
        return id(part) in surely or (source is not None and not sources.isdisjoint(source.bases()))

    return any_dying(values, predicate, dies)


def history_of(results: Iterable[torch.Tensor]) -> set[object]:
    """Returns the gradient functions in the histories of some tensors, and the ids of their leaves."""
    functions = set[object]()
    leaves = {id(compat.leaf_of(function)) for function in history_from(map(compat.function_of, results), functions)}
    return functions | leaves


def is_in_history(tensor: torch.Tensor, history: set[object]) -> bool:
    """Returns whether the history of a tensor is a part of `history`."""
    return id(tensor) in history or compat.function_of(tensor) in history


def _losses(graph: OutputGraph, effect: Effect) -> tuple[Source | None, list[Loss]]:
    """Returns the references replaced by an effect, and the source of the owner if a guard is needed."""
    match effect:
        case ContentsChanged(ListVariable() | DictVariable() | SetVariable() as container):
            items = container.items
            return container.source, items.losses() if isinstance(items, LazyList | LazyDict) else []
        case GlobalSet(namespace, name):
            loss = Loss(name, global_source(namespace, name), _item(namespace, name))
            return Constant(namespace, "globals"), [loss]
        case CellSet(cell) if cell.cell is not None and cell.source is not None:
            loss = Loss(_CONTENTS, CellContents(cell.source), _stored(cell.cell, _CONTENTS))
            return cell.source, [loss]
        case AttrSet(obj, name) | AttrDeleted(obj, name) if obj.source is not None:
            return _lost_attribute(graph, obj, obj.source, name)
    return None, []


_CONTENTS = "cell_contents"


def _lost_attribute(
    graph: OutputGraph, obj: VariableTracker, source: Source, name: str
) -> tuple[Source | None, list[Loss]]:
    if isinstance(obj, TensorVariable) and name == "grad":
        real = graph.real(obj)
        if real is None or not has_gradient(real):
            return None, []
        return source, [Loss(name, Attr(source, name), (real.grad,))]
    value = graph.real(obj) if isinstance(obj, TensorVariable) else getattr(obj, "value", None)
    place = Attr(source, "__dict__")
    if issubclass(type(value), type):
        return place, [Loss(name, Attr(source, name), _item(vars(value), name))]
    if inspect.ismemberdescriptor(inspect.getattr_static(type(value), name, None)):
        return source, [Loss(name, Attr(source, name), _stored(value, name))]
    attributes = None if value is None else instance_dict(value)
    if type(attributes) is not dict:
        return None, []
    return place, [Loss(name, InstanceAttr(source, name), _item(attributes, name))]


def _item(values: Mapping[str, object], name: str) -> tuple[object, ...]:
    return (values[name],) if name in values else ()


def _stored(owner: object, slot: str) -> tuple[object, ...]:
    try:
        return (object.__getattribute__(owner, slot),)
    except (AttributeError, ValueError):
        return ()
