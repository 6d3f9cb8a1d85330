"""Owns the question how long each value of a schedule is alive.

It sees names and storage only: a value dies behind the last step that reads it, its storage when the last value on it
is dead.
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
"""A step of a schedule before memory is planned."""


def used(call: Call) -> tuple[str, ...]:
    """The names that must exist before a step runs, apart from what it makes itself."""
    return tuple(b.name for b in call.reads) if isinstance(call, Kernel) else reads(call)


def defined(call: Call) -> tuple[str, ...]:
    """The names that a step writes or binds."""
    return tuple(b.name for b in call.writes) if isinstance(call, Kernel) else (call.out,)


@dataclass(frozen=True)
class Liveness:
    """Positions in the schedule; -1 is before it, infinity behind it. `roots[name]` are the values whose storage a view
    may share: one for a view of torch's, any argument for a function of which nothing is known. `final[name]` is where
    an output is made or read last."""

    last_use: dict[str, float]
    storage_end: dict[str, float]
    roots: dict[str, tuple[str, ...]]
    final: dict[str, float]

    def owners(self, name: str) -> tuple[str, ...]:
        """The values that own the storage of `name`, or may own it; `name` itself if it is no view."""
        return self.roots.get(name, (name,))

    def dying(self, position: int) -> list[str]:
        """Names that are not read behind step `position`, in the order in which they came up."""
        return self._dying.get(position, [])

    @cached_property
    def _dying(self) -> dict[float, list[str]]:
        found: dict[float, list[str]] = {}
        for name, last in self.last_use.items():
            found.setdefault(last, []).append(name)
        return found


def analyze(
    schedule: Sequence[Call], inputs: Iterable[str], outputs: Any, places: Mapping[str, str] | None = None
) -> Liveness:
    """Last uses of all names. An input that is never read ends before the first step. `places` has what must exist
    when a value is made."""
    places = places or {}
    last: dict[str, float] = dict.fromkeys(inputs, -1)
    roots: dict[str, tuple[str, ...]] = {}
    for k, call in enumerate(schedule):
        for name in (*used(call), *defined(call)):
            last[name] = k
            if name in places and name in defined(call):
                last[places[name]] = k
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
