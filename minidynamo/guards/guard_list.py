"""Owns the guards of one trace while tracing: each guard once, in order, with the user's line.

`guard.py` defines the meaning of guards; `check.py` writes their checks.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

from minidynamo.compat import is_immutable_class
from minidynamo.errors import UserLocation
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.source import TENSOR_FACTS, Computed, Constant, Item, Source

# Kinds that hold for values of one class only, unless the class of an object can be replaced.
_IMPLYING_CLASS = frozenset({GuardKind.IDENTITY, GuardKind.EQUALS})
_OF_CONSTANTS = frozenset({GuardKind.IDENTITY, GuardKind.TYPE})  # fixed properties of a constant
_COMPARE = frozenset({GuardKind.SAME_OBJECT, GuardKind.DISTINCT_OBJECTS})
_IMPLIED_BY: dict[GuardKind, frozenset[GuardKind]] = {
    GuardKind.NOT_NONE: frozenset({GuardKind.TYPE, GuardKind.TENSOR, *_IMPLYING_CLASS}),
    GuardKind.PRESENT: frozenset(
        {GuardKind.NOT_NONE, GuardKind.LENGTH, GuardKind.TYPE, GuardKind.TENSOR, *_IMPLYING_CLASS}
    ),
}


class GuardList:
    """The guards so far, in the order of installation. `where()` returns the user's line."""

    def __init__(self, where: Callable[[], UserLocation | None]) -> None:
        self._where = where
        self._guards: dict[int, Guard] = {}  # by id, in the order of installation
        self._at: dict[Source, dict[Any, Guard]] = {}  # per source: by kind, or by kind and the part of `expected`
        #: sources of which guards always hold, with the kinds of these guards (None: all kinds)
        self.certain: dict[Source, frozenset[GuardKind] | None] = {}

    def __iter__(self) -> Iterator[Guard]:
        return (guard for guard in self._guards.values() if not self._is_covered(guard))

    def _is_covered(self, guard: Guard) -> bool:
        """Returns whether stronger guards cover this guard: all facts of the tensor, or the class of a required
        value.
        """
        source = guard.source
        if guard.kind is GuardKind.DISTINCT_OBJECTS and all(map(self._is_fixed, [source, *guard.expected])):
            return True
        if guard.kind is GuardKind.PRESENT and isinstance(source, Item) and self._item_exists(source):
            return True
        more = _IMPLIED_BY.get(guard.kind)
        if more is not None and not more.isdisjoint(self._at[source]):
            return True
        if guard.kind is GuardKind.PRESENT and any(
            key[0] in _COMPARE for key in self._at[source] if type(key) is tuple
        ):
            return True
        if isinstance(source, Computed) and len(source.operands) == 1:  # an item of a fact
            (source,) = source.operands
        return isinstance(source, TENSOR_FACTS) and GuardKind.TENSOR in self._at.get(source.of, ())

    def _is_fixed(self, source: Source) -> bool:
        """Returns whether the source always holds the same object."""
        return isinstance(source, Constant) or GuardKind.IDENTITY in self._at.get(source, ())

    def _item_exists(self, item: Item) -> bool:
        """Returns whether the guards of the dict, list or tuple imply that the item exists."""
        known = self._at.get(item.of, {})
        cls, length = known.get(GuardKind.TYPE), known.get(GuardKind.LENGTH)
        if cls is not None and length is not None and cls.expected in (list, tuple):
            return item.key in range(-length.expected, length.expected)
        return (GuardKind.HAS_KEY, item.key) in known

    def _is_certain(self, source: Source, kind: GuardKind) -> bool:
        known = [self.certain[part] for part in (source, *source.bases()) if part in self.certain]
        return any(kinds is None or kind in kinds for kinds in known)

    def install(self, source: Source, kind: GuardKind, expected: Any) -> None:
        """Installs a guard, once. Identity and class of a constant cannot change and need no guard."""
        if kind in _OF_CONSTANTS and isinstance(source, Constant):
            return
        if self.certain and self._is_certain(source, kind):
            return
        if kind is GuardKind.DISTINCT_OBJECTS:
            expected = tuple(each for each in expected if not self._is_certain(each, kind))
            for other in expected:
                if (kind, (source,)) in self._at.get(other, {}):  # the same guard, with the sources swapped
                    expected = tuple(each for each in expected if each != other)
            if not expected:
                return
        here = self._at.setdefault(source, {})
        if kind is GuardKind.TYPE and not _IMPLYING_CLASS.isdisjoint(here) and _has_fixed_class(expected):
            return
        if kind in _IMPLYING_CLASS:
            known = here.get(GuardKind.TYPE)
            if known is not None and _has_fixed_class(known.expected):
                del here[GuardKind.TYPE], self._guards[id(known)]
        part = kind.value.part
        key: Any = kind if part is None else (kind, part(expected))
        if key not in here:
            here[key] = guard = Guard(source, kind, expected, self._where())
            self._guards[id(guard)] = guard


def _has_fixed_class(cls: Any) -> bool:
    """Returns whether the class of an instance of `cls` can never be replaced."""
    return is_immutable_class(cls) and cls is not types.ModuleType
