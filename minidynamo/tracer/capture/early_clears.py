"""Owns the early clears: container slots outside the frame from which the program removes a tensor of the graph.

Side effects are replayed after the graph, and an uncleared slot would keep the tensor alive until then. Residual
programs clear the slots before the graph runs. `tracer/runtime/rollback.py` clears, and restores before a rerun.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from minidynamo.guards.source import Attr, CellContents, Constant, InstanceAttr, Item, Source, SubclassItem
from minidynamo.tracer.lazy.lazy_dicts import LazyDict
from minidynamo.tracer.lazy.lazy_lists import LazyList
from minidynamo.tracer.records.side_effects import AttrDeleted, AttrSet, CellSet, ContentsChanged, Effect, GlobalSet
from minidynamo.tracer.records.traced_frame import EarlyClear, GraphInput
from minidynamo.variables.base import VariableTracker, is_none_constant
from minidynamo.variables.containers import DictVariable, ListVariable
from minidynamo.variables.objects import ClassVariable
from minidynamo.variables.tensors import TensorVariable


def find_early_clears(
    effects: Iterable[Effect], inputs: Iterable[GraphInput], needed: Collection[VariableTracker]
) -> tuple[EarlyClear, ...]:
    """Returns the slots of graph inputs that side effects clear, except of inputs `needed` after the graph.

    List items are removed from the end, so that the positions of earlier items stay valid. Items that are counted from
    the end come first, if the length of the list is not known.
    """
    by_owner: dict[Source, list[Effect]] = {}
    for effect in effects:
        if (owner := _owner(effect)) is not None:
            by_owner.setdefault(owner, []).append(effect)
    clears: list[EarlyClear] = []
    for graph_input in inputs if by_owner else ():
        variable, owner = graph_input.variable, graph_input.source.base
        if isinstance(variable, TensorVariable) and variable not in needed and owner:
            clears += _emptied(graph_input, by_owner.get(owner, ()))
    return tuple(sorted(clears, key=_from_the_end))


def _from_the_end(clear: EarlyClear) -> tuple[bool, int]:
    key = clear.key if isinstance(clear.key, int) else 0
    return (key >= 0, -abs(key))


def _owner(effect: Effect) -> Source | None:
    """Returns the source of the object or container written by an effect."""
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


def _emptied(graph_input: GraphInput, effects: Iterable[Effect]) -> Iterator[EarlyClear]:
    """Yields the slot of a graph input, if an effect on the owner of the slot clears it."""
    source = graph_input.source
    for effect in effects:
        match effect, source:
            case ContentsChanged(container), Item(key=key) | SubclassItem(key=key):
                items = getattr(container, "items", None)
                removed = items.cleared(key) if isinstance(items, LazyList | LazyDict) else None
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
            is_slot = isinstance(source, Attr | CellContents)
            yield EarlyClear(key, container, effect, removed, is_slot)
            return


def _removed(value: VariableTracker | None) -> bool | None:
    """Returns `EarlyClear.is_removed` for a write of `value`; None if the slot is not empty after the write."""
    if value is None:
        return True
    return False if is_none_constant(value) else None
