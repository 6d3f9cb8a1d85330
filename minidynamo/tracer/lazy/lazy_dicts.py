"""Owns the contents of external dicts and sets: each key is looked up when the program needs it.

The rules of `lazy_lists.py` hold here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import torch

from minidynamo.core.records import record
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Called, Computed, Constant, Local, Source, source_key
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.lazy.lazy_lists import LazyList, Length, MakeLazy, reader_at
from minidynamo.variables.base import ConstantVariable, VariableTracker, is_none_constant
from minidynamo.variables.containers import DictKey, Entries

_ABSENT = object()


@record(frozen=True)
class TableReader:
    """Reads a real dict or set."""

    #: the real keys, in order
    keys: tuple[Any, ...]
    #: expression of the number of keys
    size: Computed
    #: returns the real value under a key
    real: Callable[[Any], object]
    #: returns the source of the value under a key; None for an element of a set
    source_at: Callable[[Any], Source | None]
    #: returns the tracked key for a real key and its position
    key: Callable[[Any, int], DictKey]
    #: makes the lazy value under a key
    lazy: MakeLazy
    #: returns whether a real key is present
    has: Callable[[Any], bool]
    #: kind of the guard on all keys; LENGTH if each key is known by position
    kind: GuardKind
    #: returns the source of the value at a position, for a dict in which no key is looked up; else None
    at: Callable[[int], Source] | None = None


class LazyDict(Entries):
    """The contents of the external dict or set at `source`: trackers by key, None for the elements of a set.

    A lookup of a number or text guards only whether the key is present. The same holds for a dict lookup by an argument
    of the frame: a loop may call the frame with another object at each iteration, and the guard looks up that object.
    """

    def __init__(self, graph: OutputGraph, source: Source, reader: TableReader) -> None:
        self._graph = graph
        self._source = source
        self._keys: dict[DictKey, Any] | None = None  # tracked key -> real key; None until all keys are needed
        self._reader_index = len(graph.values.readers)
        graph.values.readers.append(reader)
        self.written: dict[DictKey, Any] = {}
        self.removed: dict[DictKey, None] = {}  # keys that were present on entry
        self.is_cleared = False
        self._order: list[DictKey] | None = None  # the present keys in order; None until they are needed
        self._lost: dict[DictKey, None] = {}  # keys removed or overwritten, for `lost_values`
        self._all_lost = False
        self._is_looked_up = False  # whether a key was looked up

    @property
    def _reader(self) -> TableReader:
        reader = reader_at(self._graph, self._reader_index)
        assert isinstance(reader, TableReader)
        return reader

    def _read(self) -> dict[DictKey, Any]:
        if self._keys is None:
            reader = self._reader
            in_set = reader.kind is GuardKind.SET_ITEMS
            if reader.kind is GuardKind.LENGTH or not (reader.keys or in_set):
                self._graph.guard(self._source, GuardKind.LENGTH, len(reader.keys))
            else:
                keys = (*map(source_key, reader.keys),)
                self._graph.guard(self._source, reader.kind, frozenset(keys) if in_set else keys)
            self._keys = {reader.key(key, position): key for position, key in enumerate(reader.keys)}
            if self._is_looked_up:
                self._guard_keys()
        return self._keys

    def _look_up(self, key: DictKey) -> None:
        """Guards all keys if `key` is looked up in a dict whose keys are known by position: the next call may have
        different keys."""
        if self._keys is None:
            self._is_looked_up = True
        elif self._position_source(key) is None:
            self._guard_keys()

    def _guard_keys(self) -> None:
        if self._reader.at is not None and self._keys is not None:
            self._graph.guard(self._source, GuardKind.DICT_KEYS, (*map(source_key, self._reader.keys),))

    def _position_source(self, key: DictKey) -> Source | None:
        """Returns the source of the value under a key that was read by position."""
        at = self._reader.at
        if at is None or self._keys is None:
            return None
        positions = (position for position, known in enumerate(self._keys) if known.variable is key.variable)
        position = next(positions, None)
        return None if position is None else at(position)

    def _was_present(self, key: DictKey) -> bool:
        self._look_up(key)
        if self._keys is None and _is_plain(key.token):
            has = self._reader.has(key.token)
            self._graph.guard(self._source, GuardKind.HAS_KEY if has else GuardKind.MISSING_KEY, key.token)
            return has
        argument = self._argument(key)
        real = _ABSENT if argument is None else self._real_key(key)
        if argument is None or (real is not _ABSENT and self._reader.real(real) is None):
            return key in self._read()
        if real is _ABSENT:
            self._graph.guard(Computed("{0} in {1}", (argument, self._source)), GuardKind.RELATION, False)
        else:
            self._graph.guard(self._entry_source(argument), GuardKind.NOT_NONE, None)
        return real is not _ABSENT

    def has_value_of(self, source: Source | None, key: object) -> bool | None:
        """Returns whether the constant at `source`, which may differ at the next call, is a key; None if the program
        has changed the keys."""
        if source is None or self.is_cleared or self.written or self.removed:
            return None
        self._graph.guard(Computed("({0} in {1})", (source, self._source)), GuardKind.RELATION, self._reader.has(key))
        return self._reader.has(key)

    def _argument(self, key: DictKey) -> Local | None:
        """Returns the parameter whose value is the key, if the key is looked up while no other key is known."""
        source = key.variable.source if self._keys is None and key.token is key.variable else None
        return source if isinstance(source, Local) and self._reader.kind is not GuardKind.SET_ITEMS else None

    def _entry_source(self, argument: Local) -> Source:
        """Returns the expression of the value under a parameter: None if absent, and no method of a subclass runs."""
        return Called(Constant(dict.get, "dict.get"), (self._source, argument))

    def _source_of_value(self, key: DictKey, real: object) -> Source | None:
        """Returns the source of the value under a key that is present."""
        argument, by_position = self._argument(key), self._position_source(key)
        if by_position is not None:
            return by_position
        return self._reader.source_at(real) if argument is None else self._entry_source(argument)

    def __contains__(self, key: object) -> bool:
        assert isinstance(key, DictKey)
        return key in self.written or (key not in self.removed and self._was_present(key))

    def __getitem__(self, key: DictKey) -> Any:
        value = self.lazy_at(key)
        return None if value is None else value.realize()

    def lazy_at(self, key: DictKey) -> Any:
        """Returns the value under a key, maybe lazy; None for an element of a set."""
        if key not in self:
            raise KeyError(key.token)
        if key in self.written:
            value = self.written[key]
            return None if value is None else value.realized()
        real = self._real_key(key)
        source = self._source_of_value(key, real)
        return None if source is None else self._reader.lazy(self._reader.real(real), source, presence_guarded=True)

    def lost_values(self) -> list[tuple[Source | None, object]]:
        """Returns the real keys and values removed since the last call of this method, each with its source."""
        reader, lost = self._reader, [*self._lost]
        self._lost.clear()
        if self._all_lost:
            self._all_lost = False
            return [(None, real) for real in (*reader.keys, *map(reader.real, reader.keys))]
        values: list[tuple[Source | None, object]] = []
        for key in lost:
            real = self._real_key(key)
            in_set = reader.kind is GuardKind.SET_ITEMS
            if real is _ABSENT or (in_set and (key in self.written or _is_plain(key.token))):
                continue
            source = self._source_of_value(key, real)
            values += [(source, reader.real(real))] if reader.has(real) else []
            values += [(source, real)] if key not in self.written else []
        return values

    def cleared(self, name: Any) -> bool | None:
        """Returns whether a key was removed, maybe temporarily (True), or its value was replaced by None (False); None
        if the value is still present or was replaced by another value."""
        key = DictKey(name, ConstantVariable(name))
        if not _is_plain(name):
            return None
        if key in self.removed or self.is_cleared:
            return True
        return False if is_none_constant(self.written.get(key)) else None

    def written_slots(self) -> Iterator[tuple[Source | None, Any]]:
        """Yields the source of each slot that was filled on entry and was written, and the new value."""
        for key, value in self.written.items():
            real = self._real_key(key)
            if real is not _ABSENT:
                yield self._source_of_value(key, real), value

    def _real_key(self, key: DictKey) -> object:
        """Returns the real key for a tracked key, if it may be present."""
        if self._keys is not None:
            return self._keys.get(key, _ABSENT)
        if _is_plain(key.token):
            return key.token
        return next((real for real in self._reader.keys if self._graph.values.of(real) is key.variable), _ABSENT)

    def __setitem__(self, key: DictKey, value: Any) -> None:
        self._look_up(key)
        self._lost[key] = None
        if key not in self.written and (self._keys is None or key not in self._keys or key in self.removed):
            self._order = None
        self.written[key] = value

    def __delitem__(self, key: DictKey) -> None:
        if key not in self:
            raise KeyError(key.token)
        if key not in self.removed and self._was_present(key):
            self.removed[key] = None
        self._lost[key] = None
        self._order = None
        self.written.pop(key, None)

    def _present(self) -> list[DictKey]:
        if self._order is None:
            remaining = [key for key in self._read() if key not in self.removed]
            self._order = [
                *remaining,
                *(key for key in self.written if key in self.removed or not self._was_present(key)),
            ]
        return self._order

    def __iter__(self) -> Iterator[DictKey]:
        return iter([*self._present()])

    def __len__(self) -> int:
        return len(self._present())

    def clear(self) -> None:
        """Removes all entries, without a guard."""
        self._keys, self._order = {}, None
        self._all_lost = True
        self.is_cleared = True
        self.written.clear()
        self.removed.clear()

    def lazy_length(self) -> Length | None:
        """Returns the length as a sum, while the keys on entry are not needed otherwise."""
        if self._keys is not None:
            return None
        new = sum(key in self.removed or not self._was_present(key) for key in self.written)
        if self._keys is not None:
            return None
        return Length(self._reader.size, len(self._reader.keys), new - len(self.removed))

    @property
    def is_read(self) -> bool:
        """True if all keys are known."""
        return self._keys is not None


def _is_plain(token: Hashable) -> bool:
    """Returns whether a key can be looked up by any equal key."""
    if type(token) is tuple:
        return all(map(_is_plain, token))
    return type(token) in (str, int, bool, bytes, type(None), torch.dtype, torch.device) or (
        type(token) is float and token == token
    )


def replayed_parts(items: Iterable[Any]) -> list[VariableTracker]:
    """Returns the trackers needed to replay changed contents: keys, values and elements."""
    if isinstance(items, LazyList):
        return [slot for slot in (*items.prepended(), *items.changes()[1]) if isinstance(slot, VariableTracker)]
    if isinstance(items, LazyDict):
        pairs = [(key.variable, value) for key, value in items.written.items()]
        return [part for pair in [*pairs, *((key.variable, None) for key in items.removed)] for part in pair if part]
    return [*items]
