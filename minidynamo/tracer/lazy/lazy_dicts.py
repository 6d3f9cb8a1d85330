"""Owns the contents of dicts and sets from outside: they are asked for key by key, as the program comes to them.

What `lazy_lists.py` says of lists holds here too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Called, Computed, Constant, Local, Source, stand_in
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.lazy.lazy_lists import EVERYTHING, Changes, LazyList, Length, Loss, Wrap, read_now, reader_at
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable, holds_none
from minidynamo.variables.containers import DictKey

_NOWHERE = object()


@dataclass(frozen=True)
class TableReader:
    """How to read a real dict or set: its keys, their trackers, the values. `at` says where the value at a position is,
    whatever its key, unless one is asked for."""

    keys: tuple[Any, ...]
    size: Computed  # where their number can be read
    real: Callable[[Any], object]
    place: Callable[[Any], Source | None]
    key: Callable[[Any, int], DictKey]  # of the key at a position
    wrap: Wrap
    has: Callable[[Any], bool]
    kind: GuardKind  # that guards all keys; LENGTH where each is known by its place
    at: Callable[[int], Source] | None = None


class LazyDict(MutableMapping[DictKey, Any]):
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
            return value if value is None else read_now(self._reader.wrap, value)
        if key not in self:
            raise KeyError(key.token)
        real = self._real_key(key)
        place = self._place(key, real)
        return None if place is None else self._reader.wrap(self._reader.real(real), place)

    def lazy_at(self, key: DictKey) -> Any:
        """What is under a key that is there, for who only moves it; None for an element of a set."""
        if key in self.written:
            return self.written[key]
        real = self._real_key(key)
        place = self._place(key, real)
        return None if place is None else self._graph.lazy(self._reader.real(real), place, is_there=True)

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


def known_parts(items: Iterable[Any]) -> list[VariableTracker]:
    """The trackers that replaying changed contents needs: keys, values and elements."""
    if isinstance(items, LazyList):
        return [slot for slot in items.changes()[1] if isinstance(slot, VariableTracker)]
    if isinstance(items, LazyDict):
        pairs = [(key.variable, value) for key, value in items.written.items()]
        return [part for pair in [*pairs, *((key.variable, None) for key in items.removed)] for part in pair if part]
    return [*items]
