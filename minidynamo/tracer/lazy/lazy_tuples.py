"""Owns the items of tuples from outside: they are read one by one, as the program asks for them.

What is not asked for is not guarded. A tuple never changes, so there is nothing to replay; containers that do are in
`lazy_lists.py`.
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
    """How to read a real tuple: where its length is, and where each item."""

    real: tuple[Any, ...]
    size: Computed
    place: Callable[[int], Source]
    wrap: Callable[[object, Source], VariableTracker]


class LazyTuple(Sequence[VariableTracker]):
    """The items of the tuple at `source`. How many there are is guarded when it matters."""

    def __init__(self, graph: OutputGraph, source: Source, reader: TupleReader) -> None:
        self._graph = graph
        self._source = source
        self._length = tuple.__len__(reader.real)
        self._items: dict[int, VariableTracker] = {}  # those that were read
        self._number = len(graph.values.readers)
        graph.values.readers.append(reader)

    @property
    def _reader(self) -> TupleReader:
        reader = reader_at(self._graph, self._number)
        assert isinstance(reader, TupleReader)
        return reader

    @property
    def real(self) -> tuple[Any, ...]:
        """The tuple itself."""
        return self._reader.real

    def _unread(self, place: int) -> LazyVariable:
        reader = self._reader
        return LazyVariable(tuple.__getitem__(reader.real, place), source=reader.place(place))

    def _item(self, place: int) -> VariableTracker:
        if place not in self._items:
            lazy = self._unread(place)
            assert lazy.source is not None
            self._items[place] = self._reader.wrap(lazy.value, lazy.source)
        return self._items[place]

    def unread_at(self, index: int) -> VariableTracker | None:
        """The item at an index, for who only moves it; None where there is none."""
        if not -self._length <= index < self._length:
            return None
        known, lazy = self._items.get(index), self._unread(index)
        assert lazy.source is not None
        return self._graph.lazy(lazy.value, lazy.source) if known is None else known

    def __len__(self) -> int:
        self._graph.guard(self._source, GuardKind.LENGTH, self._length)
        return self._length

    def unread_length(self) -> Length:
        """The length as a number that can be read."""
        return Length(self._reader.size, self._length, 0)

    def lazy_at(self, place: int) -> VariableTracker:
        """The item at a place, for who only moves it, of a tuple that is known to be as long as it is."""
        if place in self._items:
            return self._items[place]
        lazy = self._unread(place)
        assert lazy.source is not None
        return self._graph.lazy(lazy.value, lazy.source, is_there=True)

    def lazy(self) -> list[VariableTracker]:
        """All items; those that were not looked at stay so."""
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
        return self._item(place)  # what is guarded of it fails where there is none

    def lazy_slice(self, index: slice[Any, Any, Any]) -> list[VariableTracker]:
        """The items of a slice, for who only moves them."""
        places = ends(index, self._length)
        if places is None:
            return [self.lazy_at(place) for place in range(len(self))[index]]
        return [item for item in map(self.unread_at, places) if item is not None]
