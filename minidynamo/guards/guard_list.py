"""Owns the guards of one trace while it goes on: each one once, in order, with the user's line.

What a guard means is said in `guard.py`; how it is checked, in `check.py`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

from minidynamo.errors import UserLocation
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.source import TENSOR_FACTS, Computed, Constant, Item, Source

# Kinds of guard of which one source may carry several, told apart by what is expected.
_SEVERAL_PER_SOURCE = {
    GuardKind.HAS_KEY,
    GuardKind.MISSING_KEY,
    GuardKind.MISSING_ATTR,
    GuardKind.NO_INSTANCE_ATTR,
    GuardKind.SAME_OBJECT,
    GuardKind.UNNOTICED_DEATH,
    GuardKind.DISTINCT_OBJECTS,
}

# Kinds that hold for values of one class only, unless the class of an object can be replaced.
_TELL_CLASS = frozenset({GuardKind.IDENTITY, GuardKind.EQUALS})
_OF_CONSTANTS = frozenset({GuardKind.IDENTITY, GuardKind.TYPE})  # what cannot change of a constant
_COMPARE = frozenset({GuardKind.SAME_OBJECT, GuardKind.DISTINCT_OBJECTS})
_TELL_MORE: dict[GuardKind, frozenset[GuardKind]] = {
    GuardKind.NOT_NONE: frozenset({GuardKind.TYPE, GuardKind.TENSOR, *_TELL_CLASS}),
    GuardKind.PRESENT: frozenset(
        {GuardKind.NOT_NONE, GuardKind.LENGTH, GuardKind.TYPE, GuardKind.TENSOR, *_TELL_CLASS}
    ),
}
_IMMUTABLE_TYPE = 1 << 8  # set for classes that are built into Python; their instances keep them, but for modules


class GuardList:
    """The guards so far, in the order of installation. `where` tells the user's line."""

    def __init__(self, where: Callable[[], UserLocation | None]) -> None:
        self._where = where
        self._guards: dict[int, Guard] = {}  # in the order of installation, by their addresses
        self._at: dict[Source, dict[Any, Guard]] = {}  # of each source, by kind, or by kind and what is expected

    def __iter__(self) -> Iterator[Guard]:
        return (guard for guard in self._guards.values() if not self._is_settled(guard))

    def _is_settled(self, guard: Guard) -> bool:
        """Whether other guards say more: all facts about a tensor, or of which class a value is that must be there."""
        source = guard.source
        if guard.kind is GuardKind.DISTINCT_OBJECTS and all(map(self._is_fixed, [source, *guard.expected])):
            return True
        if guard.kind is GuardKind.PRESENT and isinstance(source, Item) and self._is_there(source):
            return True
        more = _TELL_MORE.get(guard.kind)
        if more is not None and not more.isdisjoint(self._at[source]):
            return True
        if guard.kind is GuardKind.PRESENT and any(
            key[0] in _COMPARE for key in self._at[source] if type(key) is tuple
        ):
            return True
        if isinstance(source, Computed) and len(source.operands) == 1:  # a part of a fact
            (source,) = source.operands
        return isinstance(source, TENSOR_FACTS) and GuardKind.TENSOR in self._at.get(source.of, ())

    def _is_fixed(self, source: Source) -> bool:
        """Whether only one object can be there."""
        return isinstance(source, Constant) or GuardKind.IDENTITY in self._at.get(source, ())

    def _is_there(self, place: Item) -> bool:
        """Whether what is guarded of the dict, list or tuple says that it has this item."""
        known = self._at.get(place.of, {})
        cls, length = known.get(GuardKind.TYPE), known.get(GuardKind.LENGTH)
        if cls is not None and length is not None and cls.expected in (list, tuple):
            return place.key in range(-length.expected, length.expected)
        return (GuardKind.HAS_KEY, place.key) in known

    def install(self, source: Source, kind: GuardKind, expected: Any) -> None:
        """Install a guard, once. A constant's own identity and class cannot change and need none."""
        if kind in _OF_CONSTANTS and isinstance(source, Constant):
            return
        if kind is GuardKind.DISTINCT_OBJECTS:
            for other in expected:
                if (kind, (source,)) in self._at.get(other, {}):  # the same, the other way round
                    expected = tuple(each for each in expected if each != other)
            if not expected:
                return
        here = self._at.setdefault(source, {})
        if kind is GuardKind.TYPE and not _TELL_CLASS.isdisjoint(here) and _is_for_good(expected):
            return
        if kind in _TELL_CLASS:
            known = here.get(GuardKind.TYPE)
            if known is not None and _is_for_good(known.expected):
                del here[GuardKind.TYPE], self._guards[id(known)]
        key: Any = kind
        if kind in _SEVERAL_PER_SOURCE:
            key = (kind, expected)
        elif kind is GuardKind.CLASS_ATTR:
            key = (kind, expected[0])
        if key not in here:
            here[key] = guard = Guard(source, kind, expected, self._where())
            self._guards[id(guard)] = guard


def _is_for_good(cls: Any) -> bool:
    """Whether an instance of `cls` can never be given another class."""
    return bool(cls.__flags__ & _IMMUTABLE_TYPE) and cls is not types.ModuleType
