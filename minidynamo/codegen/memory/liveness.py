"""Owns the lifetimes of the values of a schedule.

Only names and storage matter here: a value dies after its last reader, a storage dies when all its values are dead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from minidynamo.codegen.ir.loops import Extern, GetItem, Kernel, names_in
from minidynamo.codegen.scheduling.lifetimes import reads

Call = Kernel | Extern | GetItem
"""A step of a schedule before its memory is planned."""


def used(call: Call) -> tuple[str, ...]:
    """Returns the names that must exist before a step runs, without the names that the step defines."""
    return tuple(b.name for b in call.reads) if isinstance(call, Kernel) else reads(call)


def defined(call: Call) -> tuple[str, ...]:
    """Returns the names that a step writes or binds."""
    return tuple(b.name for b in call.writes) if isinstance(call, Kernel) else (call.out,)


@dataclass(frozen=True)
class Liveness:
    """Lifetimes as positions in the schedule. -1 is before the schedule, infinity is after it."""

    #: Name -> position of its last use.
    last_use: dict[str, float]
    #: Owner of a storage -> position of the last use of any value in the storage.
    storage_end: dict[str, float]
    #: View -> values whose storage the view may share: one value for a view of torch's, any argument for an unknown
    #: function.
    roots: dict[str, tuple[str, ...]]
    #: Output -> position of its definition or its last reader.
    final: dict[str, float]

    def owners(self, name: str) -> tuple[str, ...]:
        """Returns the values that own, or may own, the storage of `name`; `name` itself if it is not a view."""
        return self.roots.get(name, (name,))

    def dying(self, position: int) -> list[str]:
        """Returns the names whose last use is step `position`, in order of first appearance."""
        return self._dying.get(position, [])

    @cached_property
    def _dying(self) -> dict[float, list[str]]:
        found: dict[float, list[str]] = {}
        for name, last in self.last_use.items():
            found.setdefault(last, []).append(name)
        return found


def analyze(
    schedule: Sequence[Call], inputs: Iterable[str], outputs: Any, placements: Mapping[str, str] | None = None
) -> Liveness:
    """Computes the last uses of all names. An input without a reader ends before the first step. `placements[value]`
    must exist when `value` is defined."""
    placements = placements or {}
    last: dict[str, float] = dict.fromkeys(inputs, -1)
    roots: dict[str, tuple[str, ...]] = {}
    for k, call in enumerate(schedule):
        for name in (*used(call), *defined(call)):
            last[name] = k
            if name in placements and name in defined(call):
                last[placements[name]] = k
        if not isinstance(call, Kernel) and call.aliases:
            owners = (owner for name in call.aliases for owner in roots.get(name, (name,)))
            roots[call.out] = tuple(dict.fromkeys(owners))
    final = {name: last[name] for name in names_in(outputs) if name in last}
    for name in names_in(outputs):
        last[name] = math.inf
    ends: dict[str, float] = {}
    for name, position in last.items():
        for owner in roots.get(name, (name,)):
            ends[owner] = max(position, ends.get(owner, -1))
    return Liveness(last, ends, roots, final)
