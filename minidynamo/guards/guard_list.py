"""Owns the guards of one trace while it goes on: each one once, in order, with the user's line.

What a guard means is said in `guard.py`; how it is checked, in `check.py`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

from minidynamo.errors import UserLocation
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.source import TENSOR_FACTS, Constant, Source

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
_TELL_CLASS = (GuardKind.IDENTITY, GuardKind.EQUALS)
_IMMUTABLE_TYPE = 1 << 8  # set for classes that are built into Python; their instances keep them, but for modules


class GuardList:
    """The guards so far, in the order of installation. `where` tells the user's line."""

    def __init__(self, where: Callable[[], UserLocation | None]) -> None:
        self._where = where
        self._guards: dict[tuple[Any, ...], Guard] = {}

    def __iter__(self) -> Iterator[Guard]:
        return (guard for guard in self._guards.values() if not self._is_settled(guard.source))

    def _is_settled(self, source: Source) -> bool:
        """Whether it is one fact about a tensor that is guarded with all its facts."""
        return isinstance(source, TENSOR_FACTS) and (source.of, GuardKind.TENSOR) in self._guards

    def install(self, source: Source, kind: GuardKind, expected: object) -> None:
        """Install a guard, once. A constant's own identity and class cannot change and need none."""
        if isinstance(source, Constant) and kind in (GuardKind.IDENTITY, GuardKind.TYPE):
            return
        exact = any((source, kind) in self._guards for kind in _TELL_CLASS)
        if kind is GuardKind.TYPE and exact and _is_for_good(expected):
            return
        known = self._guards.get((source, GuardKind.TYPE))
        if kind in _TELL_CLASS and known is not None and _is_for_good(known.expected):
            del self._guards[source, GuardKind.TYPE]
        key: tuple[Any, ...] = (source, kind)
        if kind in _SEVERAL_PER_SOURCE:
            key = (*key, expected)
        elif kind is GuardKind.CLASS_ATTR:
            key = (*key, expected[0])  # type: ignore[index]
        if key not in self._guards:
            self._guards[key] = Guard(source, kind, expected, self._where())


def _is_for_good(cls: Any) -> bool:
    """Whether an instance of `cls` can never be given another class."""
    return bool(cls.__flags__ & _IMMUTABLE_TYPE) and cls is not types.ModuleType
