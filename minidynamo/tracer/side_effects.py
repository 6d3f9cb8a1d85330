"""Owns the journal of side effects: what the traced program changed that others can see.

It changes no tracker and writes no code: handlers change trackers and report here; `tracer/residual.py` replays.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import CellVariable


class Absence(enum.Enum):
    """Answers of a pending-attribute lookup that are not trackers."""

    UNKNOWN = "nothing was written while tracing"
    DELETED = "deleted while tracing"


UNKNOWN = Absence.UNKNOWN
DELETED = Absence.DELETED


@dataclass(frozen=True, eq=False)
class Effect:
    """One thing to replay after the graph."""


@dataclass(frozen=True, eq=False)
class ContentsChanged(Effect):
    """A list, deque, dict or set has new contents: those its tracker holds at the end."""

    container: VariableTracker


@dataclass(frozen=True, eq=False)
class AttrSet(Effect):
    """`obj.name` was set without user code running (object.__setattr__, or the class's own slot)."""

    obj: VariableTracker
    name: str
    value: VariableTracker


@dataclass(frozen=True, eq=False)
class AttrDeleted(Effect):
    """`obj.name` was deleted."""

    obj: VariableTracker
    name: str


@dataclass(frozen=True, eq=False)
class CellSet(Effect):
    """A closure cell was written; `value` is None when it was emptied."""

    cell: CellVariable
    value: VariableTracker | None


@dataclass(frozen=True, eq=False)
class GlobalSet(Effect):
    """A global of the module with this dictionary was written; `value` is None when it was deleted."""

    namespace: dict[str, Any]
    name: str
    value: VariableTracker | None


@dataclass(frozen=True, eq=False)
class Called(Effect):
    """A real call that was put off until after the graph, for its effect only (tensor.register_hook, ...)."""

    function: VariableTracker
    args: tuple[VariableTracker, ...]
    kwargs: dict[str, VariableTracker] = field(default_factory=dict)


class SideEffects:
    """The journal of one trace, in program order, and the values that later reads must see."""

    def __init__(self) -> None:
        self.journal: list[Effect] = []
        self._attributes: dict[tuple[VariableTracker, str], VariableTracker | Absence] = {}
        self._globals: dict[tuple[int, str], VariableTracker | Absence] = {}
        self._changed: set[VariableTracker] = set()

    def contents_changed(self, container: VariableTracker) -> None:
        """Report that the contents of a container differ from those it had; asking twice is harmless."""
        if container not in self._changed:
            self._changed.add(container)
            self.journal.append(ContentsChanged(container))

    def is_changed(self, container: VariableTracker) -> bool:
        """Whether `contents_changed` was reported for it."""
        return container in self._changed

    def set_attr(self, obj: VariableTracker, name: str, value: VariableTracker) -> None:
        """Report `obj.name = value`."""
        self._attributes[obj, name] = value
        self.journal.append(AttrSet(obj, name, value))

    def delete_attr(self, obj: VariableTracker, name: str) -> None:
        """Report `del obj.name`."""
        self._attributes[obj, name] = DELETED
        self.journal.append(AttrDeleted(obj, name))

    def attr(self, obj: VariableTracker, name: str) -> VariableTracker | Absence:
        """What a read of the attribute must see: the last value written, DELETED, or UNKNOWN."""
        return self._attributes.get((obj, name), UNKNOWN)

    def written_attrs(self, obj: VariableTracker) -> dict[str, VariableTracker | Absence]:
        """All attributes of `obj` written or deleted so far, by name."""
        return {name: value for (owner, name), value in self._attributes.items() if owner is obj}

    def set_global(self, namespace: dict[str, Any], name: str, value: VariableTracker | None) -> None:
        """Report a write (or, with None, a deletion) of a global."""
        self._globals[id(namespace), name] = DELETED if value is None else value
        self.journal.append(GlobalSet(namespace, name, value))

    def read_global(self, namespace: dict[str, Any], name: str) -> VariableTracker | Absence:
        """What a read of the global must see."""
        return self._globals.get((id(namespace), name), UNKNOWN)

    def set_cell(self, cell: CellVariable, value: VariableTracker | None) -> None:
        """Report a write to a closure cell; the caller also stores it in the tracker."""
        self.journal.append(CellSet(cell, value))

    def is_written(self, cell: CellVariable) -> bool:
        """Whether `set_cell` was reported for it."""
        return any(isinstance(effect, CellSet) and effect.cell is cell for effect in self.journal)

    def forget(self) -> None:
        """Let go of everything when the residual program is printed: it refers to the user's objects."""
        for table in (self.journal, self._attributes, self._globals, self._changed):
            table.clear()

    def call_later(self, function: VariableTracker, *args: VariableTracker, **kwargs: VariableTracker) -> None:
        """Report a call to make after the graph has run, in journal order."""
        self.journal.append(Called(function, args, kwargs))
