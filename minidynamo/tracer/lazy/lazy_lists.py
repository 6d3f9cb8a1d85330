"""Owns the contents of external lists, deques and tuples: each element is read when the program needs it.

Elements that are not read are not guarded, and additions leave them untouched: only the changes are replayed, not the
whole container. `tracer/reconstruct/containers.py` prints the changes, and `wrappers/` supply the readers. Dicts and
sets are in `lazy_dicts.py`, with the same rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, SupportsIndex, overload

from minidynamo.core.records import record
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Computed, Source
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.variables.base import VariableTracker, is_none_constant
from minidynamo.variables.containers import Slots

# An element: a tracker, or the position that the element had when the call began.
Slot = VariableTracker | int


class MakeLazy(Protocol):
    """Returns the value at a source, maybe lazy (`wrap.lazy`)."""

    def __call__(self, value: object, source: Source, /, *, presence_guarded: bool) -> VariableTracker: ...


@record(frozen=True)
class Length:
    """The length of a container: the number at `source` plus `added`, at most `limit`."""

    #: expression of the real length
    source: Computed
    #: the real length in this call
    real: int
    #: number of added elements minus number of removed elements
    added: int
    #: upper limit (the maxlen of a deque), or None
    limit: int | None = None

    @property
    def container(self) -> Source:
        """The source of the container."""
        return self.source.operands[-1]

    @property
    def now(self) -> int:
        """The length in this call."""
        total = self.real + self.added
        return total if self.limit is None else min(total, self.limit)


@record(frozen=True)
class ListReader:
    """Reads a real list, deque or tuple."""

    #: the container
    container: Any
    #: the builtin class whose methods read the container
    owner: Any
    #: expression of the length
    size: Computed
    #: returns the source of the element at a position
    source_at: Callable[[int], Source]
    #: makes the lazy value of an element
    lazy: MakeLazy
    #: wraps all elements at once, for a list that may become one input of the graph; else None
    wrap_all: Callable[[], list[VariableTracker]] | None = None

    def real(self, position: int) -> object:
        """Returns the real element at a position."""
        element: object = self.owner.__getitem__(self.container, position)
        return element


def ends(index: slice[Any, Any, Any], length: int) -> Sequence[int] | None:
    """Returns the positions of a slice, counted from one end of the list; None if the length matters."""
    start = index.start or 0
    if index.step is None and index.stop is None and -length <= start < 0:
        return range(start, 0)
    if index.step is None and index.stop is not None and 0 <= start <= index.stop <= length:
        return range(start, index.stop)
    return None


def _is_everything(index: object) -> bool:
    """Returns whether an index is a slice of all elements, whatever their number."""
    return isinstance(index, slice) and index.start in (None, 0) and index.stop is None and index.step in (None, 1)


class LazyList(Slots):
    """The elements of the external list, deque or tuple at `source`. The number of elements is guarded when it
    matters."""

    def __init__(self, graph: OutputGraph, source: Source, reader: ListReader, maxlen: int | None = None) -> None:
        self._graph = graph
        self._source = source
        self._maxlen = maxlen
        self._length: int = reader.owner.__len__(reader.container)
        self._never_emptied = reader.wrap_all is None  # neither the graph nor the program empties the list
        self._slots: list[Slot] | None = None
        # Elements that were appended and prepended while the length was not guarded.
        self._appended: list[VariableTracker] = []
        self._prepended: list[VariableTracker] = []
        self._lost: dict[int, None] = {}  # positions removed or replaced, for `lost_values`
        self._replaced: dict[int, Any] = {}  # new values, by position
        self._positions: dict[VariableTracker, int] = {}  # of elements that were wrapped at once
        self.has_known_length = False
        self._reader_index = len(graph.values.readers)
        graph.values.readers.append(reader)

    @property
    def _reader(self) -> ListReader:
        reader = reader_at(self._graph, self._reader_index)
        assert isinstance(reader, ListReader)
        return reader

    def _read(self) -> list[Slot]:
        if self._slots is None:
            if self._reader.owner is not tuple:  # most tuples are records of a fixed length
                self._graph.on_length(self)
            self._graph.guard(self._source, GuardKind.LENGTH, self._length)
            self.has_known_length = True
            wrap_all = self._reader.wrap_all
            if wrap_all is None:
                self._slots = [*range(self._length)]
            else:
                trackers = wrap_all()
                self._slots = [*trackers]
                self._positions = {tracker: position for position, tracker in enumerate(trackers)}
            self._slots = [*self._prepended, *self._slots, *self._appended]
            if self._maxlen is not None:
                over = max(len(self._slots) - self._maxlen, 0)
                self._record_losses(self._slots[:over])
                del self._slots[:over]
        return self._slots

    def _record_losses(self, slots: Iterable[Slot]) -> None:
        positions = [slot if isinstance(slot, int) else self._positions.get(slot) for slot in slots]
        self._lost |= {position: None for position in positions if position is not None}

    def first_on_entry(self) -> object:
        """Returns the first real element when the call began; None for an empty container."""
        return self._reader.real(0) if self._length else None

    def lost_values(self) -> list[tuple[Source | None, object]]:
        """Returns the real elements removed since the last call of this method, each with its source."""
        positions = dict.fromkeys(self._lost)
        self._lost.clear()
        if self._slots is None and self._maxlen is not None:
            over = self._length + len(self._appended) - self._maxlen
            positions |= dict.fromkeys(range(min(over, self._length)))
        return [(self._reader.source_at(position), self._reader.real(position)) for position in positions]

    def from_front(self, position: int) -> int:
        """Returns the position in this call, counted from the front."""
        return position if position >= 0 else position + self._length

    def cleared(self, position: Any) -> bool | None:
        """Returns whether the element was removed (True) or replaced by None (False); None if the element is still in
        the list or was replaced by another value."""
        if self._slots is None or self._reader.wrap_all is not None:
            return None
        position = self.from_front(position)
        if position in self._slots or self._graph.values.of(self._reader.real(position)) in self._slots:
            return None
        if position not in self._replaced:
            return True
        return False if is_none_constant(self._replaced[position]) else None

    def _element(self, slot: Slot, *, presence_guarded: bool) -> VariableTracker:
        """Returns the element in a slot, maybe lazy. `presence_guarded`: a guard checks already that it exists."""
        if not isinstance(slot, int):
            return slot.realized()
        reader = self._reader
        return reader.lazy(reader.real(slot), reader.source_at(slot), presence_guarded=presence_guarded)

    def _find(self, index: int, *, allow_single: bool) -> Slot | None:
        """Returns the slot at an index, without a guard on the length; None if the length is needed.

        The guard on the element fails for a shorter list. `allow_single`: also read single elements of a list whose
        elements are wrapped at once when the program needs the length.
        """
        if self._slots is not None:
            return self._slots[index] if -len(self._slots) <= index < len(self._slots) else None
        if self._is_appended(index):
            return self._appended[index]
        if (self._appended and self._maxlen is not None) or (self._reader.wrap_all is not None and not allow_single):
            return None
        if 0 <= index < len(self._prepended):
            return self._prepended[index]
        position = index - len(self._prepended) if index >= 0 else index + len(self._appended)
        return position if -self._length <= position < self._length else None

    def needs_length(self, index: slice[Any, Any, Any]) -> bool:
        """Returns whether the elements of a slice depend on a length that is not guarded yet."""
        return self._slots is None and ends(index, self._present_length) is None

    def _in_slice(self, index: slice[Any, Any, Any], *, allow_single: bool) -> list[Slot]:
        positions = ends(index, self._present_length) if self._slots is None else None
        if positions is None:
            return self._read()[index]
        found = [slot for k in positions if (slot := self._find(k, allow_single=allow_single)) is not None]
        return found if len(found) == len(positions) else self._read()[index]

    @property
    def _present_length(self) -> int:
        """The length in this call, without `maxlen`, while the length on entry is not guarded."""
        return len(self._prepended) + self._length + len(self._appended)

    @property
    def container(self) -> Any:
        """The real container."""
        return self._reader.container

    @property
    def _allows_single(self) -> bool:
        return not self._graph.inputs.is_donated(self._source)

    def __len__(self) -> int:
        return len(self._read())

    @overload
    def __getitem__(self, index: SupportsIndex) -> VariableTracker: ...

    @overload
    def __getitem__(self, index: slice[Any, Any, Any]) -> list[VariableTracker]: ...

    def __getitem__(self, index: SupportsIndex | slice[Any, Any, Any]) -> VariableTracker | list[VariableTracker]:
        if isinstance(index, slice):
            return [
                self._element(slot, presence_guarded=True).realize()
                for slot in self._in_slice(index, allow_single=False)
            ]
        position = index.__index__()
        slot = self._find(position, allow_single=False)
        return self._element(self._read()[position] if slot is None else slot, presence_guarded=True).realize()

    def find_lazy(self, index: int) -> VariableTracker | None:
        """Returns the element at an index, maybe lazy, without a guard on the length; None if the length is needed."""
        slot = self._find(index, allow_single=self._allows_single)
        return None if slot is None else self._element(slot, presence_guarded=self._slots is not None)

    def lazy_at(self, index: int) -> VariableTracker:
        item = self.find_lazy(index)
        return self._element(self._read()[index], presence_guarded=True) if item is None else item

    def lazy_slice(self, index: slice[Any, Any, Any]) -> list[VariableTracker]:
        slots = self._in_slice(index, allow_single=self._allows_single)
        return [self._element(slot, presence_guarded=self._slots is not None) for slot in slots]

    def _is_appended(self, index: SupportsIndex) -> bool:
        """Returns whether a negative index refers to an element appended to a list of unknown length."""
        added = len(self._appended) if self._maxlen is None else min(len(self._appended), self._maxlen)
        return self._slots is None and -added <= index.__index__() < 0

    def __setitem__(self, index: Any, value: Any) -> None:
        if self._slots is None and _is_everything(index):
            self.clear()
            self._replaced |= dict.fromkeys(range(self._length), value) if value else {}
        slots = self._read()
        before = slots[index] if isinstance(index, slice) else [slots[index]]
        self._record_losses(before)
        if not isinstance(index, slice) or value:
            self._replaced |= {slot: value for slot in before if isinstance(slot, int)}
        slots[index] = value

    def __delitem__(self, index: SupportsIndex | slice[Any, Any, Any]) -> None:
        if not isinstance(index, slice) and self._maxlen is None and self._is_appended(index):
            del self._appended[index]
        elif self._slots is None and _is_everything(index):
            self.clear()
        else:
            slots = self._read()
            self._record_losses(slots[index] if isinstance(index, slice) else [slots[index]])
            del slots[index]

    def insert(self, index: SupportsIndex, value: VariableTracker) -> None:
        """Inserts a value before `index`; at index 0 without a guard on the length."""
        is_first = index == 0 and self._slots is None and self._maxlen is None
        (self._prepended if is_first else self._read()).insert(index, value)

    def append(self, value: VariableTracker) -> None:
        """Appends a value, without a guard on the length."""
        (self._appended if self._slots is None else self._slots).append(value)

    def clear(self) -> None:
        """Removes all elements, without a guard on the length."""
        self._record_losses(range(self._length) if self._slots is None else self._slots)
        self._slots = []
        self._never_emptied = False

    def reverse(self) -> None:
        """Reverses the order."""
        self._read().reverse()

    @property
    def is_read(self) -> bool:
        """True if the number of elements on entry is known."""
        return self._slots is not None

    def lazy_length(self) -> Length | None:
        """Returns the length as a sum, while the length on entry is not needed otherwise."""
        if self._slots is not None:
            return None
        more = len(self._prepended) + len(self._appended)
        return Length(self._reader.size, self._length, more, self._maxlen if self._appended else None)

    def prepended(self) -> list[VariableTracker]:
        """Returns the elements that come before all elements on entry, while the length on entry is not guarded."""
        return [*self._prepended] if self._slots is None else []

    def changes(self) -> tuple[int | None, list[Slot]]:
        """Returns the number of unchanged elements at the front (None: all of them), and the elements that follow.

        The elements of `prepended` are not among them."""
        if self._slots is None:
            return None, [*self._appended]
        unchanged = 0
        while unchanged < len(self._slots) and self._slots[unchanged] == unchanged:
            unchanged += 1
        return None if unchanged == self._length and self._never_emptied else unchanged, self._slots[unchanged:]

    def written_slots(self) -> Iterator[tuple[Source | None, Any]]:
        """Yields the source of each slot that was filled on entry and was written, and the new value."""
        for k, slot in enumerate(self._slots or ()):
            if k < self._length and not isinstance(slot, int):
                yield self._reader.source_at(k), slot


def reader_at(graph: OutputGraph, index: int) -> object:
    """Returns the reader of an external container. No reader exists after the trace has ended."""
    readers = graph.values.readers
    # An IndexError would end loops over the elements too early.
    assert index < len(readers), "an external container is read after the end of the trace"
    return readers[index]
