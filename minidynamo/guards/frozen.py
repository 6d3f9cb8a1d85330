"""Owns the checks of a frozen function: cheap guards that choose a version in each call, and all guards now and then.

Generates no function; `frontend/dispatcher.py` does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from minidynamo.errors import FrozenCallDiffers
from minidynamo.guards.cache import Entry
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.recompiles import differs_from_frozen
from minidynamo.guards.source import Source
from minidynamo.guards.state import GlobalState
from minidynamo.guards.tensors import TensorFacts

_COMPARABLE = (str, bytes, int, type(None), TensorFacts, GlobalState, Source)


def distinguishing(entries: Sequence[Entry]) -> list[list[Guard]]:
    """Returns, per version, the guards that not all versions share. Where the shared guards hold, these choose a
    version.
    """
    expected: list[dict[tuple[Source, GuardKind], list[object]]] = []
    for entry in entries:
        of_entry = defaultdict(list)
        for guard in entry.guards:
            of_entry[guard.source, guard.kind].append(guard.expected)
        expected.append(of_entry)

    def is_shared(guard: Guard) -> bool:
        subject = (guard.source, guard.kind)
        return all(any(_same(guard.expected, other) for other in known.get(subject, ())) for known in expected)

    return [[guard for guard in entry.guards if not is_shared(guard)] for entry in entries]


def _same(one: object, other: object) -> bool:
    """Returns whether two guards expect the same value; values that need the user's `__eq__` count as different."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float | complex):
        return repr(one) == repr(other)  # distinguishes zeros by sign, and equates NaN with NaN
    return isinstance(one, _COMPARABLE) and one == other


class Recheck:
    """Raises FrozenCallDiffers if a call fits no entry, or if called with `refuse`."""

    def __init__(
        self, name: str, parameters: Sequence[str], entries: Sequence[Entry], backend_key: Callable[[], Hashable]
    ) -> None:
        self._name = name
        self._parameters = parameters
        self._entries = entries
        self._backend_key = backend_key
        head = f"lambda {', '.join(parameters)}: "
        self._conditions = [eval(f"{head}{entry.condition.text}", dict(entry.condition.namespace)) for entry in entries]

    def __call__(self, values: tuple[Any, ...], refuse: bool = False) -> None:
        if refuse or not any(map(self._fits, self._entries, self._conditions, [values] * len(self._entries))):
            arguments = dict(zip(self._parameters, values))
            found = [entry.failures(arguments, self._backend_key()) for entry in self._entries]
            raise FrozenCallDiffers(differs_from_frozen(self._name, min(found, key=len)))

    def _fits(self, entry: Entry, condition: Callable[..., Any], values: tuple[Any, ...]) -> bool:
        try:
            return entry.alive() and bool(condition(*values))
        except Exception:  # a value of another type, or a missing key
            return False
