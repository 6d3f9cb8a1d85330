"""Owns which places outside a program empties of a tensor that its graph takes from there.

Effects are replayed behind the graph, so that such a tensor would live until then. Residual programs empty these places
before the graph runs; `tracer/runtime/rollback.py` knows how, and puts everything back for a second run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from minidynamo.guards.source import Attr, CellContents, Constant, InstanceAttr, Item, Source, StorageItem
from minidynamo.tracer.lazy.lazy_dicts import LazyDict
from minidynamo.tracer.lazy.lazy_lists import LazyList
from minidynamo.tracer.records.side_effects import AttrDeleted, AttrSet, CellSet, ContentsChanged, Effect, GlobalSet
from minidynamo.tracer.records.traced_frame import EarlyClear, GraphInput
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import holds_none
from minidynamo.variables.containers import DictVariable, ListVariable
from minidynamo.variables.objects import ClassVariable
from minidynamo.variables.tensors import TensorVariable


def emptied_places(
    effects: Iterable[Effect], inputs: Iterable[GraphInput], needed: Collection[VariableTracker]
) -> tuple[EarlyClear, ...]:
    """The places of graph inputs, other than those `needed` behind the graph, that effects empty whatever it computes.

    Items of lists are removed from the end, so that the positions in front stay what they are, and before that those
    which are counted from the end, where it is not known how long the list is.
    """
    by_owner: dict[Source, list[Effect]] = {}
    for effect in effects:
        if (owner := _owner(effect)) is not None:
            by_owner.setdefault(owner, []).append(effect)
    found: list[EarlyClear] = []
    for given in inputs if by_owner else ():
        if isinstance(given.variable, TensorVariable) and given.variable not in needed and given.source.base:
            found += _emptied(given, by_owner.get(given.source.base, ()))
    return tuple(sorted(found, key=_from_the_end))


def _from_the_end(place: EarlyClear) -> tuple[bool, int]:
    key = place.key if isinstance(place.key, int) else 0
    return (key >= 0, -abs(key))


def _owner(effect: Effect) -> Source | None:
    """Where that lies to which an effect writes."""
    match effect:
        case ContentsChanged(ListVariable() | DictVariable() as container):
            return container.source
        case AttrSet(obj) | AttrDeleted(obj) if not isinstance(obj, ClassVariable):
            return obj.source
        case CellSet(cell):
            return cell.source
        case GlobalSet(namespace):
            return Constant(namespace, "G", hidden=True)
    return None


def _emptied(given: GraphInput, effects: Iterable[Effect]) -> Iterator[EarlyClear]:
    """The place of a graph input, if some effect on its owner empties it."""
    place = given.source
    for effect in effects:
        match effect, place:
            case ContentsChanged(container), Item(key=key) | StorageItem(key=key):
                items = getattr(container, "items", None)
                removed = items.emptied(key) if isinstance(items, LazyList | LazyDict) else None
                if isinstance(items, LazyList) and items.has_known_length and isinstance(key, int):
                    key = items.from_front(key)
            case AttrDeleted(container, key), InstanceAttr(name=name) | Attr(name=name) if key == name:
                removed = True
            case AttrSet(container, key, value), InstanceAttr(name=name) | Attr(name=name) if key == name:
                removed = _removed(value)
            case CellSet(container, value), CellContents():
                key, removed = "cell_contents", _removed(value)
            case GlobalSet(container, name, value), Item(key=key) if key == name:
                removed = _removed(value)
            case _:
                removed = None
        if removed is not None:
            is_slot = isinstance(place, Attr | CellContents)
            yield EarlyClear(key, container, effect, removed, given.node, is_slot)
            return


def _removed(value: VariableTracker | None) -> bool | None:
    """What `is_removed` says when this is written: None where the place is not empty behind it."""
    if value is None:
        return True
    return False if holds_none(value) else None
