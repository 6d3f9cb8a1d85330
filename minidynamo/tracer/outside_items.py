"""Owns the contents of containers from outside: they are read one by one, as the program asks for them.

What is not asked for is not guarded, and stays as it is when the program adds something: what was added or changed is
replayed, not the whole container. `reconstruct/containers.py` writes that down, and `wrappers/` know what to read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, overload

import torch

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Called, Computed, Constant, Local, Source, stand_in
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable, holds_none
from minidynamo.variables.containers import DictKey
from minidynamo.variables.objects import UnreadVariable

_NOWHERE = object()
EVERYTHING = object()

# An element: a value, or the one that was at this place when the call began.
Slot = VariableTracker | int


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
    wrap: Callable[[object, Source], VariableTracker]
    together: Callable[[], list[VariableTracker]] | None = None


def ends(index: slice[Any, Any, Any], length: int) -> Sequence[int] | None:
    """Where the items of a slice are, by the end from which it counts; None where the length matters."""
    start = index.start or 0
    if index.step is None and index.stop is None and -length <= start < 0:
        return range(start, 0)
    if index.step is None and index.stop is not None and 0 <= start <= index.stop <= length:
        return range(start, index.stop)
    return None


class OutsideItems(MutableSequence[VariableTracker]):
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
        return _read_now(self._reader, slot)

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
            return self.moved_at(index) if -len(self._slots) <= index < len(self._slots) else None
        if self._is_new(index):
            return self._added[index]
        alone = not self._graph.inputs.is_stolen(self._source)
        place = self._place(index, alone=alone)
        return None if place is None else self._graph.unread(self._reader.real(place), self._reader.place(place))

    def moved_slice(self, index: slice[Any, Any, Any]) -> list[VariableTracker]:
        """The elements of a slice, for who only moves them."""
        places = ends(index, self._length + len(self._added)) if self._slots is None else None
        found = [] if places is None else [item for item in map(self.unread_at, places) if item is not None]
        if places is not None and len(found) == len(places):
            return found
        return [self.moved_at(place) for place in range(len(self))[index]]

    def moved_at(self, index: int) -> VariableTracker:
        """The element at an index, for who only moves it, of a list that is known to be as long as it is."""
        slot = self._read()[index]
        if isinstance(slot, int):
            return self._graph.unread(self._reader.real(slot), self._reader.place(slot), is_there=True)
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


@dataclass(frozen=True)
class TableReader:
    """How to read a real dict or set: its keys, their trackers, the values. `at` says where the value at a position is,
    whatever its key, unless one is asked for."""

    keys: tuple[Any, ...]
    size: Computed  # where their number can be read
    real: Callable[[Any], object]
    place: Callable[[Any], Source | None]
    key: Callable[[Any, int], DictKey]  # of the key at a position
    wrap: Callable[[object, Source], VariableTracker]
    has: Callable[[Any], bool]
    kind: GuardKind  # that guards all keys; LENGTH where each is known by its place
    at: Callable[[int], Source] | None = None


class OutsideTable(MutableMapping[DictKey, Any]):
    """The contents of the dict or set at `source`: trackers by keys, None by the elements of a set.

    Asking for a key that is a number or text guards whether this one is there. So does asking a dict for an object that
    is itself an argument of the frame, which is another one for each item of a loop: that is found where it comes in.
    """

    def __init__(self, graph: OutputGraph, source: Source, reader: TableReader) -> None:
        self._graph = graph
        self._source = source
        self._keys: dict[DictKey, Any] | None = None  # and the real keys
        self._number = len(graph.values.readers)
        graph.values.readers.append(reader)
        self.written: dict[DictKey, Any] = {}
        self.removed: dict[DictKey, None] = {}  # of those that were there on entry
        self.is_cleared = False
        self._here: list[DictKey] | None = None  # the keys in order, until others are there
        self._lost: dict[DictKey, None] = {}  # keys that were removed, or got another value, for `losses`
        self._all_lost = False
        self._is_asked = False  # for a key
        self.when = Changes(graph)

    @property
    def _reader(self) -> TableReader:
        reader = reader_at(self._graph, self._number)
        assert isinstance(reader, TableReader)
        return reader

    def _read(self) -> dict[DictKey, Any]:
        if self._keys is None:
            reader = self._reader
            in_set = reader.kind is GuardKind.SET_ITEMS
            if reader.kind is GuardKind.LENGTH or not (reader.keys or in_set):
                self._graph.guard(self._source, GuardKind.LENGTH, len(reader.keys))
            else:
                stand_ins = (*map(stand_in, reader.keys),)
                self._graph.guard(self._source, reader.kind, frozenset(stand_ins) if in_set else stand_ins)
            self._keys = {reader.key(key, position): key for position, key in enumerate(reader.keys)}
            if self._is_asked:
                self._fix_keys()
        return self._keys

    def _ask_for(self, key: DictKey) -> None:
        """A key matters: where all are known by their places, others may be there at the next call."""
        if self._keys is None:
            self._is_asked = True
        elif self._own_place(key) is None:
            self._fix_keys()

    def _fix_keys(self) -> None:
        if self._reader.at is not None and self._keys is not None:
            self._graph.guard(self._source, GuardKind.DICT_KEYS, (*map(stand_in, self._reader.keys),))

    def _own_place(self, key: DictKey) -> Source | None:
        """Where the value under a key is that the table itself has given, which is known by its place."""
        at = self._reader.at
        if at is None or self._keys is None:
            return None
        own = (position for position, known in enumerate(self._keys) if known.variable is key.variable)
        position = next(own, None)
        return None if position is None else at(position)

    def _had(self, key: DictKey) -> bool:
        self._ask_for(key)
        if self._keys is None and _is_plain(key.token):
            has = self._reader.has(key.token)
            self._graph.guard(self._source, GuardKind.HAS_KEY if has else GuardKind.MISSING_KEY, key.token)
            return has
        argument = self._argument(key)
        real = _NOWHERE if argument is None else self._real_key(key)
        if argument is None or (real is not _NOWHERE and self._reader.real(real) is None):
            return key in self._read()
        if real is _NOWHERE:
            self._graph.guard(Computed("{0} in {1}", (argument, self._source)), GuardKind.RELATION, False)
        else:
            self._graph.guard(self._under(argument), GuardKind.NOT_NONE, None)
        return real is not _NOWHERE

    def has_what_is_at(self, place: Source | None, key: object) -> bool | None:
        """Whether the constant at a place is a key, which may be another one at the next call; None where the program
        has changed the keys."""
        if place is None or self.is_cleared or self.written or self.removed:
            return None
        self._graph.guard(Computed("({0} in {1})", (place, self._source)), GuardKind.RELATION, self._reader.has(key))
        return self._reader.has(key)

    def _argument(self, key: DictKey) -> Local | None:
        """The argument that a key of a dict is, which is looked up alone while the other keys do not matter."""
        source = key.variable.source if self._keys is None and key.token is key.variable else None
        return source if isinstance(source, Local) and self._reader.kind is not GuardKind.SET_ITEMS else None

    def _under(self, argument: Local) -> Source:
        """What the dict has under an argument; None without it, and no other class has a say."""
        return Called(Constant(dict.get, "dict.get"), (self._source, argument))

    def _place(self, key: DictKey, real: object) -> Source | None:
        """Where the value under a key that is there can be read."""
        argument, own = self._argument(key), self._own_place(key)
        if own is not None:
            return own
        return self._reader.place(real) if argument is None else self._under(argument)

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, DictKey)
        return key in self.written or (key not in self.removed and self._had(key))

    def __getitem__(self, key: DictKey) -> Any:
        if key in self.written:
            value = self.written[key]
            return value if value is None else _read_now(self._reader, value)
        if key not in self:
            raise KeyError(key.token)
        real = self._real_key(key)
        place = self._place(key, real)
        return None if place is None else self._reader.wrap(self._reader.real(real), place)

    def moved_at(self, key: DictKey) -> Any:
        """What is under a key that is there, for who only moves it; None for an element of a set."""
        if key in self.written:
            return self.written[key]
        real = self._real_key(key)
        place = self._place(key, real)
        return None if place is None else self._graph.unread(self._reader.real(real), place, is_there=True)

    def hold_nothing(self, is_such: Callable[[object], bool]) -> bool:
        """Whether nothing that was there when the call began, keys included, is such a one."""
        reader = self._reader
        return not any(map(is_such, (*reader.keys, *map(reader.real, reader.keys))))

    def losses(self) -> list[Loss]:
        """What was lost since this was last asked."""
        reader, lost = self._reader, [*self._lost]
        self._lost.clear()
        if self._all_lost:
            self._all_lost = False
            return [Loss(EVERYTHING, None, (*reader.keys, *map(reader.real, reader.keys)))]
        found = []
        for key in lost:
            real = self._real_key(key)
            in_set = reader.kind is GuardKind.SET_ITEMS
            if real is _NOWHERE or (in_set and (key in self.written or _is_plain(key.token))):
                continue
            values = (reader.real(real),) if reader.has(real) else ()
            if key not in self.written:
                values = (*values, real)
            elif values and self._graph.values.of(values[0]) is self.written[key]:
                continue
            found.append(Loss(stand_in(real), self._place(key, real), values))
        return found

    def emptied(self, name: Any) -> bool | None:
        """Whether a key that was there has gone, maybe for a time, or its value has made way for None (False); None
        where it is still there, or has got something new."""
        key = DictKey(name, ConstantVariable(name))
        if not _is_plain(name):
            return None
        if key in self.removed or self.is_cleared:
            return True
        return False if holds_none(self.written.get(key)) else None

    def _real_key(self, key: DictKey) -> object:
        """The key that this one stands for in the real container, if it may be there."""
        if self._keys is not None:
            return self._keys.get(key, _NOWHERE)
        if _is_plain(key.token):
            return key.token
        return next((real for real in self._reader.keys if self._graph.values.of(real) is key.variable), _NOWHERE)

    def __setitem__(self, key: DictKey, value: Any) -> None:
        self._ask_for(key)
        self._lost[key] = None
        if holds_none(value):
            self.when.empty(key, is_removed=False)
        else:
            self.when.change()
        if key not in self.written and (self._keys is None or key not in self._keys or key in self.removed):
            self._here = None
        self.written[key] = value

    def __delitem__(self, key: DictKey) -> None:
        if key not in self:
            raise KeyError(key.token)
        if key not in self.removed and self._had(key):
            self.removed[key] = None
        self.when.empty(key)
        self._lost[key] = None
        self._here = None
        self.written.pop(key, None)

    def _present(self) -> list[DictKey]:
        if self._here is None:
            kept = [key for key in self._read() if key not in self.removed]
            self._here = [*kept, *(key for key in self.written if key in self.removed or not self._had(key))]
        return self._here

    def __iter__(self) -> Iterator[DictKey]:
        return iter([*self._present()])

    def __reversed__(self) -> Iterator[DictKey]:
        return iter(self._present()[::-1])

    def __len__(self) -> int:
        return len(self._present())

    def clear(self) -> None:
        """Drop everything, which asks for nothing."""
        for real in self._reader.keys:
            key = DictKey(real, ConstantVariable(real)) if _is_plain(real) else None
            if key not in self.removed:
                self.when.empty(key)
        self._keys, self._here = {}, None
        self._all_lost = True
        self.is_cleared = True
        self.written.clear()
        self.removed.clear()

    def unread_length(self) -> Length | None:
        """The length as a sum, while the keys on entry do not matter otherwise."""
        if self._keys is not None:
            return None
        new = sum(key in self.removed or not self._had(key) for key in self.written)
        if self._keys is not None:
            return None
        return Length(self._reader.size, len(self._reader.keys), new - len(self.removed))

    @property
    def is_read(self) -> bool:
        """Whether all keys are known."""
        return self._keys is not None


def _is_plain(token: Hashable) -> bool:
    """Whether every key that equals this one can be looked up by it."""
    if type(token) is tuple:
        return all(map(_is_plain, token))
    return type(token) in (str, int, bool, bytes, type(None), torch.dtype, torch.device) or (
        type(token) is float and token == token
    )


Reader = ListReader | TableReader


def _read_now(reader: Reader, value: VariableTracker) -> VariableTracker:
    """The tracker of what was put into a container, maybe as it came: an unread value is looked at now."""
    if isinstance(value, UnreadVariable) and value.source is not None:
        return reader.wrap(value.value, value.source)
    return value


def reader_at(graph: OutputGraph, number: int) -> object:
    """What reads the container from outside that was met as the `number`th. Nothing does when the trace is over."""
    readers = graph.values.readers
    # An IndexError would end loops over the elements too early.
    assert number < len(readers), "a container from outside is read when the trace is over"
    return readers[number]


def known_parts(items: Iterable[Any]) -> list[VariableTracker]:
    """The trackers that replaying changed contents needs: keys, values and elements."""
    if isinstance(items, OutsideItems):
        return [slot for slot in items.changes()[1] if isinstance(slot, VariableTracker)]
    if isinstance(items, OutsideTable):
        pairs = [(key.variable, value) for key, value in items.written.items()]
        return [part for pair in [*pairs, *((key.variable, None) for key in items.removed)] for part in pair if part]
    return [*items]
