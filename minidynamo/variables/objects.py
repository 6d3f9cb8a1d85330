"""Owns the trackers of objects: instances of user classes, nn.Modules, classes and Python modules.

Attribute writes are in the side-effect journal, not in the trackers.
"""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from typing import Any

from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import DictVariable


@dataclass(eq=False)
class ObjectVariable(VariableTracker):
    """An instance of a class written in Python. `value` is the real object; None for one made while tracing.

    For an instance of a subclass of list, tuple or dict, `storage` tracks the underlying container. `namespace` is its
    `__dict__` once somebody has asked for that.
    """

    value: Any
    cls: type
    storage: VariableTracker | None = None
    namespace: DictVariable | None = None

    @property
    def python_type(self) -> type:
        return self.cls


@dataclass(eq=False)
class NamespaceVariable(DictVariable):
    """What has no contents of its own: the `__dict__` of an object or a class, a read-only view of a dict (`owner`).

    Its `items` are, or read and write, those of the owner.
    """

    owner: VariableTracker = field(kw_only=True)


@dataclass(eq=False)
class IdVariable(VariableTracker):
    """`id(of)` for an object made while tracing: a number that nobody knows yet."""

    of: VariableTracker

    @property
    def python_type(self) -> type:
        return int


@dataclass(eq=False)
class ModuleVariable(ObjectVariable):
    """An nn.Module that existed before the trace."""


@dataclass(eq=False)
class ClassVariable(VariableTracker):
    """A class."""

    value: type

    @property
    def python_type(self) -> type:
        return type(self.value)


@dataclass(eq=False)
class PythonModuleVariable(VariableTracker):
    """An imported module. `namespace` is its `__dict__` once somebody has asked for that."""

    value: types.ModuleType
    namespace: DictVariable | None = None

    @property
    def python_type(self) -> type:
        return type(self.value)


@dataclass(eq=False)
class OpaqueVariable(VariableTracker):
    """A value that can be passed on and stored but not looked into; using it breaks the graph."""

    value: Any

    @property
    def python_type(self) -> type:
        return type(self.value)


@dataclass(eq=False)
class LazyVariable(OpaqueVariable):
    """A value that a frame was entered with and has only moved so far: nothing about it is guarded.

    Looking at it makes another tracker, with guards; frames do that when the program takes it off the stack.
    """
