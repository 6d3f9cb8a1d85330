"""Owns the record of items that differ from call to call: in kind (None or a tensor, True or False, one class or
another), or as numbers.

A loop that decides by the kind of each item needs a version for each combination of kinds, so the graph ends before the
code that reads such an item (`tracer/capture/trace.py`). If several numbers of a list have changed, all numbers of the
list vary. Single numbers and sizes that vary are in `profile.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from minidynamo.core.records import record
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.recompiles import GuardFailure
from minidynamo.guards.source import Local, Source, stable_name

# Guards on the kind of a value.
OF_KINDS = frozenset({GuardKind.TYPE, GuardKind.IDENTITY, GuardKind.EQUALS, GuardKind.NOT_NONE})
LEAST_ITEMS = 9  # of computed data
LEAST_NUMBERS = 3  # that change at once


@record
class VaryingItems:
    """The items whose kind varies, of the values of one frame point."""

    #: names of items, with `*` for each position that varies: `L['batch'][*][2]`
    patterns: set[str] = field(default_factory=set)
    #: arguments that Python computes from such items
    computed: set[str] = field(default_factory=set)
    #: names of numbers, with `*` like `patterns`
    numbers: set[str] = field(default_factory=set)

    def add(self, other: VaryingItems) -> None:
        """Adds the items of another record."""
        self.patterns |= other.patterns
        self.numbers |= other.numbers
        self.computed |= other.computed

    def learn(self, failures: Iterable[GuardFailure]) -> None:
        """Adds items whose kinds vary: a version expects different kinds at several positions, and a call has another
        kind at each. `failures` are those of one version.

        Items that all change in the same way, such as caches that are None in the first call only, need one more
        version."""
        found = [failure for failure in failures if failure.guard.kind in (*OF_KINDS, GuardKind.TENSOR)]
        for pattern, group in _groups(failure for failure in found if failure.differs_in_kind):
            if len({failure.expected_kind for failure in group}) > 1:
                self.patterns.add(pattern)
        numbers = (
            failure for failure in found if failure.expected_kind in (int, float) and not failure.differs_in_kind
        )
        self.numbers |= {pattern for pattern, group in _groups(numbers) if len(group) >= LEAST_NUMBERS}

    def add_computed(self, arguments: Mapping[str, object]) -> None:
        """Adds the items of computed lists and tuples among the arguments. A short list is a structure, such as several
        results."""
        for name in self.computed:
            value = arguments.get(name)
            if isinstance(value, list | tuple) and len(value) >= LEAST_ITEMS:
                self.patterns.add(f"{stable_name(Local(name))}[*]")
        self.computed.clear()

    def has(self, source: Source) -> bool:
        """Returns whether the kind of the value at a source varies."""
        return any(fits(pattern, stable_name(source)) for pattern in self.patterns)

    def has_number(self, name: str) -> bool:
        """Returns whether the number at the source of this name varies."""
        return any(fits(pattern, name) for pattern in self.numbers)


def _groups(failures: Iterable[GuardFailure]) -> list[tuple[str, list[GuardFailure]]]:
    """Returns the failures whose sources differ in positions alone, with the pattern of the sources."""
    groups: dict[tuple[str, ...], list[GuardFailure]] = {}
    for failure in failures:
        groups.setdefault(tuple(_tokens(stable_name(failure.guard.source))[::2]), []).append(failure)
    found = []
    for group in groups.values():
        pattern = ""
        for failure in group:
            pattern = joined(pattern, stable_name(failure.guard.source))
        found += [(pattern, group)] if "[*]" in pattern else []
    return found


def fits(pattern: str, name: str) -> bool:
    """Returns whether a name fits a pattern."""
    expected, found = _tokens(pattern), _tokens(name)
    return len(expected) == len(found) and all(part in ("*", other) for part, other in zip(expected, found))


def joined(pattern: str, name: str) -> str:
    """Returns the pattern that fits a name and everything that `pattern` fits. Both have the same number of positions;
    "" fits nothing."""
    if not pattern:
        return name
    parts = [one if one == other else "*" for one, other in zip(_tokens(pattern), _tokens(name))]
    return "".join(f"[{part}]" if number % 2 else part for number, part in enumerate(parts))


def _tokens(name: str) -> Sequence[str]:
    """Splits a name, or a pattern, at its positions: texts at even places, positions at odd places."""
    return re.split(r"\[(\d+|\*)\]", name)
