"""Owns the trackers of objects: instances of user classes, nn.Modules, classes and Python modules.

Attribute writes are in the side-effect journal, not in the trackers.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import DictVariable


@dataclass(eq=False)
class ObjectVariable(VariableTracker):
    """An instance of a class written in Python."""

    #: The real object; None for an object that was made during capture.
    value: Any
    cls: type
    #: The underlying container of an instance of a subclass of list, tuple or dict.
    storage: VariableTracker | None = None
    #: The `__dict__`, after its first use.
    namespace: DictVariable | None = None

    @property
    def python_type(self) -> type:
        return self.cls


@dataclass(eq=False)
class NamespaceVariable(DictVariable):
    """A dict without contents of its own: the `__dict__` of an object or class, or a read-only view of a dict.

    Its `items` are, or read and write, the contents of `owner`.
    """

    owner: VariableTracker = field(kw_only=True)


@dataclass(eq=False)
class IdVariable(VariableTracker):
    """The result of `id(of)` for an object that was made during capture: a number that is unknown until run time."""

    of: VariableTracker

    @property
    def python_type(self) -> type:
        return int


@dataclass(eq=False)
class ModuleVariable(ObjectVariable):
    """An nn.Module that is an external value."""


@dataclass(eq=False)
class ClassVariable(VariableTracker):
    """A class."""

    value: type

    @property
    def python_type(self) -> type:
        return type(self.value)


@dataclass(eq=False)
class PythonModuleVariable(VariableTracker):
    """An imported module."""

    value: types.ModuleType
    #: The `__dict__`, after its first use.
    namespace: DictVariable | None = None

    @property
    def python_type(self) -> type:
        return type(self.value)


@dataclass(eq=False)
class OpaqueVariable(VariableTracker):
    """A value that can be passed on and stored, but not inspected; other uses break the graph."""

    value: Any

    @property
    def python_type(self) -> type:
        return type(self.value)


@dataclass(eq=False)
class LazyVariable(OpaqueVariable):
    """An external value that the program has moved but not read: nothing about it is guarded.

    Realizing it makes another tracker, with guards; frames realize it when the program pops it from the stack.
    """

    #: Returns the tracker of the value, if the value was realized elsewhere.
    known: Callable[[], VariableTracker | None]
    #: Makes the tracker of the value, with guards.
    wrap: Callable[[], VariableTracker]
    _tracker: VariableTracker | None = None

    def realize(self) -> VariableTracker:
        if self._tracker is None:
            self._tracker = self.wrap()
        return self._tracker

    def realized(self) -> VariableTracker:
        return self._tracker or self.known() or self
