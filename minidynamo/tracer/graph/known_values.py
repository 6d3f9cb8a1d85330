"""Owns who is who in one trace: the trackers of real values, by where they live and by identity.

It makes no tracker and guards nothing; `wrap.py` does both.
"""

from __future__ import annotations

from typing import Any

from minidynamo.guards.source import Source
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.objects import ObjectVariable, PythonModuleVariable


class KnownValues:
    """The trackers of the real values that the program has looked at."""

    def __init__(self) -> None:
        self._by_source: dict[Source, VariableTracker] = {}
        self._by_identity: dict[int, VariableTracker] = {}
        self._unread: dict[int, Source] = {}
        self._alive: list[object] = []
        self._owners: dict[int, VariableTracker] = {}
        self.readers: list[object] = []  # of real containers (`tracer/lazy/lazy_lists.py`)
        self.is_over = False

    def at(self, source: Source) -> VariableTracker | None:
        """The tracker of the value at `source`, if there is one already."""
        return self._by_source.get(source)

    def of(self, value: object) -> VariableTracker | None:
        """The tracker of this very object, if there is one already."""
        return self._by_identity.get(id(value))

    def place(self, source: Source, variable: VariableTracker) -> None:
        """From now on the value at `source` is known as `variable`, whatever object stands for it there."""
        self._by_source[source] = variable

    def remember(self, value: object, variable: VariableTracker) -> None:
        """From now on `variable` stands for the real object `value`, which is kept alive during the trace."""
        self._alive.append(value)
        self._by_identity[id(value)] = variable
        if variable.source is not None:
            self._by_source[variable.source] = variable

    def record_lazy(self, value: object, source: Source) -> None:
        """The program has come to the value at `source`, which is kept alive during the trace, and has not looked."""
        self._alive.append(value)
        self._unread.setdefault(id(value), source)

    def place_of(self, value: object) -> Source | None:
        """Where the program has come to this very object, whether it has looked at it or not."""
        known = self._by_identity.get(id(value))
        return self._unread.get(id(value)) if known is None else known.source

    def claim_namespace(self, namespace: object, owner: VariableTracker) -> bool:
        """Whether nobody else stands for the dictionary that holds the attributes of `owner`; from now on it does."""
        known = self._owners.setdefault(id(namespace), owner)
        return known is owner and id(namespace) not in self._by_identity

    def is_namespace(self, value: dict[Any, Any]) -> bool:
        """Whether a dict holds the attributes of a tracked object."""
        return id(value) in self._owners

    def outside(self) -> list[VariableTracker]:
        """The trackers of real objects that have an identity, in the order in which they were met."""
        return list(dict.fromkeys(v for v in self._by_identity.values() if v.source is not None))

    def forget(self) -> None:
        """Let go of the user's objects: the trace is over."""
        self.is_over = True
        for variable in self._by_identity.values():
            if isinstance(variable, ObjectVariable | PythonModuleVariable):
                variable.namespace = None  # which refers to the object
        for table in (self._alive, self.readers, self._by_identity, self._unread, self._by_source, self._owners):
            table.clear()
