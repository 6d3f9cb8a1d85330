"""Owns the identity of values in a trace: the trackers of real values, by source and by object.

Trackers and guards are not made here (`wrap.py`)."""

from __future__ import annotations

from typing import Any

from minidynamo.guards.source import Source
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.objects import ObjectVariable, PythonModuleVariable


class KnownValues:
    """The trackers of the real values that the program has read."""

    def __init__(self) -> None:
        self._by_source: dict[Source, VariableTracker] = {}
        self._by_identity: dict[int, VariableTracker] = {}
        self._lazy_sources: dict[int, Source] = {}
        self._alive: list[object] = []
        self._owners: dict[int, VariableTracker] = {}
        self.readers: list[object] = []  # of real containers (`tracer/lazy/lazy_lists.py`)
        self.has_ended = False

    def at(self, source: Source) -> VariableTracker | None:
        """Returns the tracker of the value at `source`; None if it has none yet."""
        return self._by_source.get(source)

    def of(self, value: object) -> VariableTracker | None:
        """Returns the tracker of this very object; None if it has none yet."""
        return self._by_identity.get(id(value))

    def place(self, source: Source, variable: VariableTracker) -> None:
        """Makes `variable` the tracker of the value at `source`, whichever object is there."""
        self._by_source[source] = variable

    def remember(self, value: object, variable: VariableTracker) -> None:
        """Makes `variable` the tracker of the real object `value`, and keeps the object alive during the trace."""
        self._alive.append(value)
        self._by_identity[id(value)] = variable
        if variable.source is not None:
            self._by_source[variable.source] = variable

    def record_lazy(self, value: object, source: Source) -> None:
        """Records that the program has moved the value at `source` unread, and keeps the value alive."""
        self._alive.append(value)
        self._lazy_sources.setdefault(id(value), source)

    def source_of(self, value: object) -> Source | None:
        """Returns the source of this very object, read or lazy; None if the program has not seen it."""
        known = self._by_identity.get(id(value))
        return self._lazy_sources.get(id(value)) if known is None else known.source

    def claim_namespace(self, namespace: object, owner: VariableTracker) -> bool:
        """Makes `owner` the owner of its attribute dictionary; returns False if the dictionary has another tracker."""
        known = self._owners.setdefault(id(namespace), owner)
        return known is owner and id(namespace) not in self._by_identity

    def is_namespace(self, value: dict[Any, Any]) -> bool:
        """Returns whether a dict holds the attributes of a tracked object."""
        return id(value) in self._owners

    def external_values(self) -> list[VariableTracker]:
        """Returns the trackers of external objects with an identity, in the order of their first use."""
        return list(dict.fromkeys(v for v in self._by_identity.values() if v.source is not None))

    def forget(self) -> None:
        """Ends the trace: drops references to the user's objects."""
        self.has_ended = True
        for variable in self._by_identity.values():
            if isinstance(variable, ObjectVariable | PythonModuleVariable):
                variable.namespace = None  # refers to the object
        for table in (self._alive, self.readers, self._by_identity, self._lazy_sources, self._by_source, self._owners):
            table.clear()
