"""Owns the contents of lists and deques from outside: they are read one by one, as the program asks for them.

What is not asked for is not guarded, and stays as it is when the program adds something: what was added or changed is
replayed, not the whole container. `tracer/reconstruct/containers.py` writes that down, and `wrappers/` know what to
read. Dicts and sets are in `lazy_dicts.py`, which has the same rules, tuples in `lazy_tuples.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, overload

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Computed, Source
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import holds_none
from minidynamo.variables.objects import LazyVariable

EVERYTHING = object()

# An element: a value, or the one that was at this place when the call began.
Slot = VariableTracker | int

Wrap = Callable[[object, Source], VariableTracker]


@dataclass(frozen=True)
class Length:
    """How long a container is: the number at `place`, which is `there`, and `more`, but at most `most`."""

    place: Computed
    there: int
    more: int
    most: int | None = None

    @property
    def container(self) -> Source:
        """What is so long."""
        return self.place.operands[-1]

    @property
    def now(self) -> int:
        """The number itself, in this call."""
        total = self.there + self.more
        return total if self.most is None else min(total, self.most)


@dataclass(frozen=True)
class Loss:
    """What a container from outside loses: the values that it had at `place` when the call began.

    Nothing may be there, or something else at the next call. With the key `EVERYTHING`, all that it holds is lost.
    """

    key: Any
    place: Source | None
    values: tuple[object, ...]


class Changes:
    """When a container from outside was changed: how many operations the graph had by then.

    `emptied` has the places that were emptied once, and whether nothing is there since, or None (False); `otherwise` is
    when something else was done first, None for never.
    """

    def __init__(self, graph: OutputGraph) -> None:
        self._graph = graph
        self.emptied: dict[Any, tuple[int, bool]] = {}
        self.otherwise: int | None = None

    def empty(self, place: Any, *, is_removed: bool = True) -> None:
        """A place is emptied now; twice is something else, and so is None for what was put there."""
        if place is None or place in self.emptied:
            self.change()
        else:
            self.emptied[place] = self._graph.time, is_removed

    def change(self) -> None:
        """Something else is done now."""
        if self.otherwise is None:
            self.otherwise = self._graph.time


@dataclass(frozen=True)
class ListReader:
    """How to read a real list or deque; `together` tracks all elements at once, where that has to be."""

    length: int
    size: Computed  # where the length can be read
    real: Callable[[int], object]
    place: Callable[[int], Source]
    wrap: Wrap
    together: Callable[[], list[VariableTracker]] | None = None


def ends(index: slice[Any, Any, Any], length: int) -> Sequence[int] | None:
    """Where the items of a slice are, by the end from which it counts; None where the length matters."""
    start = index.start or 0
    if index.step is None and index.stop is None and -length <= start < 0:
        return range(start, 0)
    if index.step is None and index.stop is not None and 0 <= start <= index.stop <= length:
        return range(start, index.stop)
    return None


class LazyList(MutableSequence[VariableTracker]):
    """The elements of the list or deque at `source`. How many there are is guarded when it matters."""

    def __init__(self, graph: OutputGraph, source: Source, reader: ListReader, maxlen: int | None = None) -> None:
        self._graph = graph
        self._source = source
        self._maxlen = maxlen
        self._length = reader.length
        self._stays = reader.together is None  # neither the graph nor the program empties it
        self._slots: list[Slot] | None = None
        self._added: list[VariableTracker] = []  # by a program that has not asked how many there were
        self._lost: dict[int, None] = {}  # the places of those that were removed or replaced, for `losses`
        self._replaced: dict[int, Any] = {}  # what was assigned to their places
        self._moved: dict[VariableTracker, int] = {}  # those that were put elsewhere, with their first places
        self._all_lost = False
        self.has_known_length = False
        self._has_twins = False  # elements that are one and the same
        self.when = Changes(graph)
        self._number = len(graph.values.readers)
        graph.values.readers.append(reader)

    @property
    def _reader(self) -> ListReader:
        reader = reader_at(self._graph, self._number)
        assert isinstance(reader, ListReader)
        return reader

    def _read(self) -> list[Slot]:
        if self._slots is None:
            self._graph.guard(self._source, GuardKind.LENGTH, self._length)
            self.has_known_length = True
            together = self._reader.together
            if together is None:
                self._slots = [*range(self._length)]
            else:
                trackers = together()
                self._slots = [*trackers]
                self._moved = {tracker: place for place, tracker in enumerate(trackers)}
                self._has_twins = len(self._moved) < len(trackers)
            self._slots += self._added
            if self._maxlen is not None:
                over = max(len(self._slots) - self._maxlen, 0)
                self._lose(self._slots[:over])
                del self._slots[:over]
        return self._slots

    def _lose(self, slots: Iterable[Slot], *, is_removed: bool = True) -> None:
        places = [slot if isinstance(slot, int) else self._moved.get(slot) for slot in slots]
        self._lost |= {place: None for place in places if place is not None}
        for place in places:
            self.when.empty(None if self._has_twins else place, is_removed=is_removed)

    def hold_nothing(self, is_such: Callable[[object], bool]) -> bool:
        """Whether no element that was there when the call began is such a one."""
        return not any(is_such(self._reader.real(place)) for place in range(self._length))

    def losses(self) -> list[Loss]:
        """What was lost since this was last asked, other places in the same list not counting."""
        reader, here = self._reader, self._slots
        found: list[Loss] = []
        if here is None and self._maxlen is not None:
            over = self._length + len(self._added) - self._maxlen
            for k in range(min(len(self._added), self._maxlen)):  # the next time it may be full
                found.append(Loss(k, reader.place(k), (reader.real(k),) if k < min(over, self._length) else ()))
        for place in self._lost:
            real = reader.real(place)
            known = self._graph.values.of(real)
            if known is not None and here is not None and any(slot is known for slot in here):
                self._moved[known] = place
            else:
                found.append(Loss(place, reader.place(place), (real,)))
        self._lost.clear()
        if self._all_lost:
            found = [Loss(EVERYTHING, None, tuple(value for loss in found for value in loss.values))]
            self._all_lost = False
        return found

    def from_front(self, place: int) -> int:
        """A place in this call, which may have been counted from the end."""
        return place if place >= 0 else place + self._length

    def emptied(self, place: Any) -> bool | None:
        """Whether the element that was at a place is gone, or has made way for None (False); None where it is still in
        the list, or has made way for something else."""
        if self._slots is None or self._reader.together is not None:
            return None
        place = self.from_front(place)
        if place in self._slots or self._graph.values.of(self._reader.real(place)) in self._slots:
            return None
        if place not in self._replaced:
            return True
        return False if holds_none(self._replaced[place]) else None

    def _tracker(self, slot: Slot) -> VariableTracker:
        if isinstance(slot, int):
            return self._reader.wrap(self._reader.real(slot), self._reader.place(slot))
        return read_now(self._reader.wrap, slot)

    def __len__(self) -> int:
        return len(self._read())

    @overload
    def __getitem__(self, index: SupportsIndex) -> VariableTracker: ...

    @overload
    def __getitem__(self, index: slice[Any, Any, Any]) -> list[VariableTracker]: ...

    def __getitem__(self, index: SupportsIndex | slice[Any, Any, Any]) -> VariableTracker | list[VariableTracker]:
        if isinstance(index, slice):
            return [self._tracker(slot) for slot in self._read()[index]]
        if self._is_new(index):
            return self._tracker(self._added[index])
        place = self._place(index.__index__())
        return self._tracker(self._read()[index] if place is None else place)

    def _place(self, index: int, *, alone: bool = False) -> int | None:
        """Where an element of a list that is as long as it was can be read, so that its length need not be known.

        What is guarded of the element fails where there is none. `alone`: also where all are tracked at once later.
        """
        if self._slots is not None or (self._added and self._maxlen is not None):
            return None
        if self._reader.together is not None and not alone:
            return None
        place = index if index >= 0 else index + len(self._added)
        return place if -self._length <= place < self._length else None

    def unread_at(self, index: int) -> VariableTracker | None:
        """The element at an index, for who only moves it; None where it takes more to find it."""
        if self._slots is not None:
            return self.lazy_at(index) if -len(self._slots) <= index < len(self._slots) else None
        if self._is_new(index):
            return self._added[index]
        alone = not self._graph.inputs.is_stolen(self._source)
        place = self._place(index, alone=alone)
        return None if place is None else self._graph.lazy(self._reader.real(place), self._reader.place(place))

    def lazy_slice(self, index: slice[Any, Any, Any]) -> list[VariableTracker]:
        """The elements of a slice, for who only moves them."""
        places = ends(index, self._length + len(self._added)) if self._slots is None else None
        found = [] if places is None else [item for item in map(self.unread_at, places) if item is not None]
        if places is not None and len(found) == len(places):
            return found
        return [self.lazy_at(place) for place in range(len(self))[index]]

    def lazy_at(self, index: int) -> VariableTracker:
        """The element at an index, for who only moves it, of a list that is known to be as long as it is."""
        slot = self._read()[index]
        if isinstance(slot, int):
            return self._graph.lazy(self._reader.real(slot), self._reader.place(slot), is_there=True)
        return slot

    def _is_new(self, index: SupportsIndex) -> bool:
        """Whether it counts from the end, and no further than to what was added to a list that was not looked at."""
        added = len(self._added) if self._maxlen is None else min(len(self._added), self._maxlen)
        return self._slots is None and -added <= index.__index__() < 0

    def __setitem__(self, index: Any, value: Any) -> None:
        slots = self._read()
        before = slots[index] if isinstance(index, slice) else [slots[index]]
        self._lose(before, is_removed=isinstance(index, slice))
        if value if isinstance(index, slice) else not holds_none(value):
            self.when.change()
        if not isinstance(index, slice) or value:
            self._replaced |= {slot: value for slot in before if isinstance(slot, int)}
        slots[index] = value

    def __delitem__(self, index: SupportsIndex | slice[Any, Any, Any]) -> None:
        if not isinstance(index, slice) and self._maxlen is None and self._is_new(index):
            del self._added[index]
        else:
            slots = self._read()
            self._lose(slots[index] if isinstance(index, slice) else [slots[index]])
            del slots[index]

    def insert(self, index: SupportsIndex, value: VariableTracker) -> None:
        """Put a value in front of the one at `index`."""
        self.when.change()
        self._read().insert(index, value)

    def append(self, value: VariableTracker) -> None:
        """Add a value at the end, which asks for nothing."""
        self.when.change()
        (self._added if self._slots is None else self._slots).append(value)

    def clear(self) -> None:
        """Drop everything, which asks for nothing."""
        self._all_lost = self._slots is None
        self._lose(range(self._length) if self._slots is None else self._slots)
        self._slots = []
        self._stays = False

    def reverse(self) -> None:
        """Turn the order round."""
        self.when.change()
        self._read().reverse()

    @property
    def is_read(self) -> bool:
        """Whether the elements that were there on entry are known by number."""
        return self._slots is not None

    def unread_length(self) -> Length | None:
        """The length as a sum, while the length on entry does not matter otherwise."""
        if self._slots is not None:
            return None
        return Length(self._reader.size, self._length, len(self._added), self._maxlen if self._added else None)

    def changes(self) -> tuple[int | None, list[Slot]]:
        """How many of the first elements are those of the beginning (None: all there were), and what follows them."""
        if self._slots is None:
            return None, [*self._added]
        kept = 0
        while kept < len(self._slots) and self._slots[kept] == kept:
            kept += 1
        return None if kept == self._length and self._stays else kept, self._slots[kept:]


def read_now(wrap: Wrap, value: VariableTracker) -> VariableTracker:
    """The tracker of what was put into a container, maybe as it came: an unread value is looked at now, by `wrap`."""
    if isinstance(value, LazyVariable) and value.source is not None:
        return wrap(value.value, value.source)
    return value


def reader_at(graph: OutputGraph, number: int) -> object:
    """What reads the container from outside that was met as the `number`th. Nothing does when the trace is over."""
    readers = graph.values.readers
    # An IndexError would end loops over the elements too early.
    assert number < len(readers), "a container from outside is read when the trace is over"
    return readers[number]
