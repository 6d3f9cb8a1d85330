"""Owns the trackers of objects: instances, nn.Modules, classes, Python modules, weak references, context variables, and
exceptions with their tracebacks.

Attribute writes are in the side-effect journal, not in the trackers. Raising is in `tracer/frames/exceptions.py`.
"""

from __future__ import annotations

import contextvars
import types
import weakref
from collections.abc import Callable
from dataclasses import field
from typing import Any

from minidynamo.core.records import record
from minidynamo.variables.base import OF_CLS, OF_VALUE, VariableTracker
from minidynamo.variables.containers import DictVariable, TupleVariable


@record(eq=False)
class ObjectVariable(VariableTracker):
    """An instance of a class written in Python."""

    python_type = OF_CLS
    #: The real object; None for an object that was created during capture.
    value: Any
    cls: type
    #: The underlying container of an instance of a subclass of list, tuple or dict.
    storage: VariableTracker | None = None
    #: The `__dict__`, after its first use.
    namespace: DictVariable | None = None
    #: The tracker of the dict that is also the `__dict__`, or of another object with the same `__dict__`.
    shares: VariableTracker | None = None


@record(eq=False)
class NamespaceVariable(DictVariable):
    """A dict without contents of its own: the `__dict__` of an object or class, or a read-only view of a dict.

    Its `items` are, or read and write, the contents of `owner`.
    """

    owner: VariableTracker = field(kw_only=True)


@record(eq=False)
class ModuleVariable(ObjectVariable):
    """An nn.Module that is an external value."""


@record(eq=False)
class ClassVariable(VariableTracker):
    """A class."""

    python_type = OF_VALUE
    value: type


@record(eq=False)
class PythonModuleVariable(VariableTracker):
    """An imported module."""

    python_type = OF_VALUE
    value: types.ModuleType
    #: The `__dict__`, after its first use.
    namespace: DictVariable | None = None


@record(eq=False)
class OpaqueVariable(VariableTracker):
    """A value that can be passed on and stored, but not inspected; other uses break the graph."""

    python_type = OF_VALUE
    value: Any


@record(eq=False)
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


@record(eq=False)
class WeakReferenceVariable(VariableTracker):
    """A weak reference."""

    python_type = weakref.ref
    #: The real reference, if it is an external value.
    value: weakref.ref[Any] | None
    #: The referent, if the reference was created during capture.
    referent: VariableTracker | None = None


@record(eq=False)
class ContextVarVariable(VariableTracker):
    """A context variable that is an external value."""

    python_type = contextvars.ContextVar
    value: contextvars.ContextVar[Any]


@record(eq=False)
class ContextTokenVariable(VariableTracker):
    """The token that setting a context variable returns during capture."""

    python_type = contextvars.Token
    of: ContextVarVariable
    #: The side effect; a reset with the token restores the value from before it.
    effect: object


@record(eq=False)
class ExceptionVariable(ObjectVariable):
    """An exception that was created during capture."""

    #: None if only the class of the exception is known.
    args: TupleVariable | None = None
    #: The known attributes that the built-in class stores in addition to the arguments.
    fields: dict[str, VariableTracker] = field(default_factory=dict)
    #: The result of `str()`, if it follows from `args` and `fields`.
    text: str | None = None
    cause: VariableTracker | None = None
    context: VariableTracker | None = None
    suppresses_context: bool = False
    #: Whether the exception was raised. The traceback exists only if Python itself raises.
    is_raised: bool = False


@record(eq=False)
class TracebackVariable(VariableTracker):
    """The traceback of a raised exception: a value to pass on, which only Python can inspect."""

    python_type = types.TracebackType
    exception: ExceptionVariable
