"""Owns which calls of the user's own operators come before the program takes a tensor out of a container.

Such an operator may raise anything, and tensors die in time in spite of it, so that the frame cannot run again then.
But it is known which call has raised (`artifacts.raised_operator`), and what the program takes behind that one is put
back (`tracer/runtime/rollback.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import replace

from torch import fx

from minidynamo.tracer.frames.runtime_asserts import only_computes
from minidynamo.tracer.graph.dead_code import may_raise
from minidynamo.tracer.lazy.lazy_dicts import LazyDict
from minidynamo.tracer.lazy.lazy_lists import Changes, LazyList
from minidynamo.tracer.records.side_effects import ContentsChanged, Effect
from minidynamo.tracer.records.traced_frame import EarlyClear, GraphInput, Taking, Takings
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictKey, ListVariable


def takings_of(
    graph: fx.GraphModule | None,
    inputs: Collection[GraphInput],
    emptied: Collection[EarlyClear],
    times: Mapping[Effect, int],
) -> Takings | None:
    """What the program takes from containers and other places, the user's operators being numbered in `graph`.

    None where a container holds something at some call that does not follow from what it held at the beginning and from
    what was taken. `times` says how many operations the graph had when something was written.
    """
    lists = [given.variable for given in inputs if given.given_up and not given.stolen]
    if graph is None or not (lists or emptied):
        return None
    calls = _Calls(graph)
    calls.number()
    in_lists: dict[ListVariable, Mapping[int, Taking]] = {}
    for variable in lists:
        assert isinstance(variable, ListVariable) and isinstance(variable.items, LazyList)
        when, nodes = variable.items.when, [getattr(item, "node", None) for item in variable.original or ()]
        if calls.come_behind(when.otherwise):
            return None
        in_lists[variable] = {
            k: calls.taking(time, nodes[k], is_removed) for k, (time, is_removed) in when.emptied.items()
        }
    in_places: dict[EarlyClear, Taking] = {}
    known: dict[Changes, set[object]] = {}
    for place in emptied:
        key, changes = _key(place), _changes(place)
        if changes is not None:
            if key not in changes.emptied:
                return None
            known.setdefault(changes, set()).add(key)
        time = times[place.effect] if changes is None else changes.emptied[key][0]
        in_places[place] = calls.taking(time, place.node, place.is_removed)
    for changes, keys in known.items():
        others = (time for key, (time, _) in changes.emptied.items() if key not in keys)
        if any(map(calls.come_behind, [changes.otherwise, *others])):
            return None
    return Takings(in_lists, in_places)


def _changes(place: EarlyClear) -> Changes | None:
    """When the container was changed that a place is in."""
    items = getattr(place.owner, "items", None) if isinstance(place.effect, ContentsChanged) else None
    return items.when if isinstance(items, LazyList | LazyDict) else None


def _key(place: EarlyClear) -> object:
    """What a container calls a place."""
    items, key = getattr(place.owner, "items", None), place.key
    if isinstance(items, LazyList) and isinstance(key, int):
        return items.from_front(key)
    return DictKey(key, ConstantVariable(key)) if isinstance(items, LazyDict) else key


class _Calls:
    """The calls of the user's operators in a finished graph."""

    def __init__(self, graph: fx.GraphModule) -> None:
        self._position = {node: position for position, node in enumerate(graph.graph.nodes)}
        self._calls = [node for node in self._position if may_raise(node) and not only_computes(node)]
        self._times = [node.meta["time"] for node in self._calls]

    def number(self) -> None:
        """Let the user's lines tell which call is which: they go wherever a call goes."""
        for number, node in enumerate(self._calls, 1):
            node.meta["user_location"] = replace(node.meta["user_location"], operator=number)

    def come_behind(self, time: int | None) -> bool:
        """Whether there is a call behind what was done at a time."""
        return time is not None and bisect_right(self._times, time) < len(self._calls)

    def taking(self, time: int, node: fx.Node | None, is_removed: bool) -> Taking:
        """What `node` stands for is taken at a time."""
        behind = bisect_right(self._times, time)
        last = max(map(self._position.__getitem__, node.users if node is not None else ()), default=-1)
        return Taking(behind, is_removed, behind > 0 and last < self._position[self._calls[behind - 1]])
