"""Owns the early clears: container slots outside the frame from which the program removes a tensor of the graph.

Side effects are replayed after the graph, and an uncleared slot would keep the tensor alive until then. Residual
programs clear the slots before the graph runs. `tracer/runtime/rollback.py` clears, and restores before a rerun. An
idle slot is cleared after a call of the user's operator, while the graph reads its tensor before the call: if the
operator raises, the tensor must still be there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping

from torch import fx

from minidynamo.guards.source import Attr, CellContents, Constant, InstanceAttr, Item, Source, StorageItem
from minidynamo.tracer.frames.runtime_asserts import only_computes
from minidynamo.tracer.graph.dead_code import may_raise
from minidynamo.tracer.lazy.lazy_dicts import LazyDict
from minidynamo.tracer.lazy.lazy_lists import Changes, LazyList
from minidynamo.tracer.records.side_effects import AttrDeleted, AttrSet, CellSet, ContentsChanged, Effect, GlobalSet
from minidynamo.tracer.records.traced_frame import EarlyClear, GraphInput, IdleSlots
from minidynamo.variables.base import ConstantVariable, VariableTracker, is_none_constant
from minidynamo.variables.containers import DictKey, DictVariable, ListVariable
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
    found: list[EarlyClear] = []
    for given in inputs if by_owner else ():
        if isinstance(given.variable, TensorVariable) and given.variable not in needed and given.source.base:
            found += _emptied(given, by_owner.get(given.source.base, ()))
    return tuple(sorted(found, key=_from_the_end))


def _from_the_end(place: EarlyClear) -> tuple[bool, int]:
    key = place.key if isinstance(place.key, int) else 0
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


def _emptied(given: GraphInput, effects: Iterable[Effect]) -> Iterator[EarlyClear]:
    """Yields the slot of a graph input, if an effect on the owner of the slot clears it."""
    place = given.source
    for effect in effects:
        match effect, place:
            case ContentsChanged(container), Item(key=key) | StorageItem(key=key):
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
            is_slot = isinstance(place, Attr | CellContents)
            yield EarlyClear(key, container, effect, removed, given.node, is_slot)
            return


def _removed(value: VariableTracker | None) -> bool | None:
    """Returns `EarlyClear.is_removed` for a write of `value`; None if the slot is not empty after the write."""
    if value is None:
        return True
    return False if is_none_constant(value) else None


def find_idle_slots(
    graph: fx.GraphModule | None,
    inputs: Collection[GraphInput],
    early_clears: Collection[EarlyClear],
    times: Mapping[Effect, int],
) -> IdleSlots | None:
    """Returns the idle slots. None if a container is changed in another way before a call of a custom operator: then
    every argument must outlive the graph.

    `times`: the number of operations in the graph when an effect was recorded.
    """
    lists = [given.variable for given in inputs if given.is_emptied and not given.is_donated]
    if graph is None or not (lists or early_clears):
        return IdleSlots()
    calls = _CustomCalls(graph)
    in_lists: dict[ListVariable, frozenset[int]] = {}
    for variable in lists:
        assert isinstance(variable, ListVariable) and isinstance(variable.items, LazyList)
        changed_at, nodes = variable.items.changed_at, [getattr(item, "node", None) for item in variable.original or ()]
        if calls.follow(changed_at.other_change):
            return None
        in_lists[variable] = frozenset(k for k, time in changed_at.cleared.items() if calls.is_idle(nodes[k], time))
    slots: set[EarlyClear] = set()
    cleared: dict[Changes, set[object]] = {}
    for slot in early_clears:
        key, changes = _key(slot), _changes(slot)
        if changes is not None:
            if key not in changes.cleared:
                return None
            cleared.setdefault(changes, set()).add(key)
        if calls.is_idle(slot.node, times[slot.effect] if changes is None else changes.cleared[key]):
            slots.add(slot)
    for changes, keys in cleared.items():
        others = (time for key, time in changes.cleared.items() if key not in keys)
        if any(map(calls.follow, [changes.other_change, *others])):
            return None
    return IdleSlots(in_lists, frozenset(slots))


def _changes(slot: EarlyClear) -> Changes | None:
    """Returns the changes of the container of a slot."""
    items = getattr(slot.owner, "items", None) if isinstance(slot.effect, ContentsChanged) else None
    return items.changed_at if isinstance(items, LazyList | LazyDict) else None


def _key(slot: EarlyClear) -> object:
    """Returns the key of a slot in `Changes.cleared`."""
    items, key = getattr(slot.owner, "items", None), slot.key
    if isinstance(items, LazyList) and isinstance(key, int):
        return items.from_front(key)
    return DictKey(key, ConstantVariable(key)) if isinstance(items, LazyDict) else key


class _CustomCalls:
    """The calls of the user's operators in a finished graph."""

    def __init__(self, graph: fx.GraphModule) -> None:
        self._position = {node: position for position, node in enumerate(graph.graph.nodes)}
        self._calls = [node for node in self._position if may_raise(node) and not only_computes(node)]
        self._times = [node.meta["time"] for node in self._calls]

    def follow(self, time: int | None) -> bool:
        """Returns whether a call follows a change at this time."""
        return time is not None and bisect_right(self._times, time) < len(self._calls)

    def is_idle(self, node: fx.Node | None, time: int) -> bool:
        """Returns whether a call lies between the last use of a placeholder and the time when its slot is cleared."""
        before = bisect_right(self._times, time)
        last_use = max(map(self._position.__getitem__, node.users if node is not None else ()), default=-1)
        return before > 0 and last_use < self._position[self._calls[before - 1]]
