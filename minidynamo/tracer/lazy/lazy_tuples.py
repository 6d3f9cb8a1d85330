"""Owns the items of external tuples: each item is read when the program needs it.

Items that are not read are not guarded. A tuple never changes, so nothing is replayed; mutable containers are in
`lazy_lists.py` and `lazy_dicts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, overload

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Computed, Source
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.lazy.lazy_lists import Length, ends, reader_at
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.objects import LazyVariable


@dataclass(frozen=True)
class TupleReader:
    """Reads a real tuple."""

    #: the tuple
    real: tuple[Any, ...]
    #: expression of the length
    size: Computed
    #: returns the source of the item at a position
    place: Callable[[int], Source]
    #: wraps an item
    wrap: Callable[[object, Source], VariableTracker]


class LazyTuple(Sequence[VariableTracker]):
    """The items of the external tuple at `source`. The number of items is guarded when it matters."""

    def __init__(self, graph: OutputGraph, source: Source, reader: TupleReader) -> None:
        self._graph = graph
        self._source = source
        self._length = tuple.__len__(reader.real)
        self._items: dict[int, VariableTracker] = {}  # the items that were read
        self._number = len(graph.values.readers)
        graph.values.readers.append(reader)

    @property
    def _reader(self) -> TupleReader:
        reader = reader_at(self._graph, self._number)
        assert isinstance(reader, TupleReader)
        return reader

    @property
    def real(self) -> tuple[Any, ...]:
        """The real tuple."""
        return self._reader.real

    def _lazy_value(self, place: int) -> LazyVariable:
        reader = self._reader
        return LazyVariable(tuple.__getitem__(reader.real, place), source=reader.place(place))

    def _item(self, place: int) -> VariableTracker:
        if place not in self._items:
            lazy = self._lazy_value(place)
            assert lazy.source is not None
            self._items[place] = self._reader.wrap(lazy.value, lazy.source)
        return self._items[place]

    def find_lazy(self, index: int) -> VariableTracker | None:
        """Returns the item at an index, maybe lazy, without a guard on the length; None if there is no such item."""
        if not -self._length <= index < self._length:
            return None
        known, lazy = self._items.get(index), self._lazy_value(index)
        assert lazy.source is not None
        return self._graph.lazy(lazy.value, lazy.source) if known is None else known

    def __len__(self) -> int:
        self._graph.guard(self._source, GuardKind.LENGTH, self._length)
        return self._length

    def lazy_length(self) -> Length:
        """Returns the length as an expression."""
        return Length(self._reader.size, self._length, 0)

    def lazy_at(self, place: int) -> VariableTracker:
        """Returns the item at a position, maybe lazy; the length must be guarded."""
        if place in self._items:
            return self._items[place]
        lazy = self._lazy_value(place)
        assert lazy.source is not None
        return self._graph.lazy(lazy.value, lazy.source, is_there=True)

    def lazy(self) -> list[VariableTracker]:
        """Returns all items; items that were never read are lazy."""
        return [self.lazy_at(place) for place in range(len(self))]

    @overload
    def __getitem__(self, index: SupportsIndex) -> VariableTracker: ...

    @overload
    def __getitem__(self, index: slice[Any, Any, Any]) -> list[VariableTracker]: ...

    def __getitem__(self, index: SupportsIndex | slice[Any, Any, Any]) -> VariableTracker | list[VariableTracker]:
        if isinstance(index, slice):
            places = ends(index, self._length)
            return [self._item(place) for place in (range(len(self))[index] if places is None else places)]
        place = index.__index__()
        if not -self._length <= place < self._length:
            raise IndexError(f"none of {len(self)} items is at {place}")
        return self._item(place)  # its guard fails for a shorter tuple

    def lazy_slice(self, index: slice[Any, Any, Any]) -> list[VariableTracker]:
        """Returns the items of a slice, maybe lazy."""
        places = ends(index, self._length)
        if places is None:
            return [self.lazy_at(place) for place in range(len(self))[index]]
        return [item for item in map(self.find_lazy, places) if item is not None]
