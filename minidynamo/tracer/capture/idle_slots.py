"""Owns the cleared slots whose tensors must outlive their last use in the graph, because a custom operator may raise.

The program pops a tensor after a call of the user's operator, and the graph reads the tensor before that call. If the
operator raises, the tensor must still be in its slot (`tracer/runtime/rollback.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping

from torch import fx

from minidynamo.tracer.frames.runtime_asserts import only_computes
from minidynamo.tracer.graph.dead_code import may_raise
from minidynamo.tracer.lazy.lazy_dicts import LazyDict
from minidynamo.tracer.lazy.lazy_lists import Changes, LazyList
from minidynamo.tracer.records.side_effects import ContentsChanged, Effect
from minidynamo.tracer.records.traced_frame import EarlyClear, GraphInput, IdleSlots
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictKey, ListVariable


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
