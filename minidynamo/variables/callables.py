"""Owns the trackers of things that are called: functions, methods, builtins, cells, partial and super objects.

It does not call them; `tracer/calls/call.py` does.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import DictVariable, TupleVariable


@dataclass(eq=False)
class CellVariable(VariableTracker):
    """A closure cell. `contents` is None while the cell is empty or, for a cell from outside, not read yet."""

    contents: VariableTracker | None = None
    cell: types.CellType | None = None  # the real cell, for one that existed before the trace

    @property
    def python_type(self) -> type:
        return types.CellType


@dataclass(eq=False)
class FunctionVariable(VariableTracker):
    """A Python function that existed before the trace."""

    value: types.FunctionType

    @property
    def python_type(self) -> type:
        return types.FunctionType


@dataclass(eq=False)
class NestedFunctionVariable(VariableTracker):
    """A Python function made while tracing (def, lambda, comprehension)."""

    code: types.CodeType
    namespace: dict[str, Any]  # its globals
    qualname: str
    defaults: VariableTracker | None = None
    kwdefaults: VariableTracker | None = None
    annotations: VariableTracker | None = None
    closure: tuple[CellVariable, ...] = ()
    attributes: dict[str, VariableTracker] = field(default_factory=dict)

    @property
    def python_type(self) -> type:
        return types.FunctionType


@dataclass(eq=False)
class MethodVariable(VariableTracker):
    """A bound method: `function` (Python or C) with its first argument."""

    function: VariableTracker
    receiver: VariableTracker

    @property
    def python_type(self) -> type:
        return types.MethodType


@dataclass(eq=False)
class BuiltinVariable(VariableTracker):
    """A callable that is not traced into: a C function, a torch operator, a method descriptor."""

    value: Any

    @property
    def python_type(self) -> type:
        return type(self.value)


@dataclass(eq=False)
class BoundBuiltin(VariableTracker):
    """A built-in method of a tracked value (`[].append`, `"".join`, `tensor.add`) before it is called."""

    receiver: VariableTracker
    name: str

    @property
    def python_type(self) -> type:
        found = inspect.getattr_static(self.receiver.python_type, self.name, None)
        return types.MethodWrapperType if isinstance(found, types.WrapperDescriptorType) else types.BuiltinMethodType


@dataclass(eq=False)
class PartialVariable(VariableTracker):
    """functools.partial; programs may change its `keywords`, so they are the dict itself.

    `value` is the real one, from outside, which can have attributes of its own.
    """

    function: VariableTracker
    args: TupleVariable
    keywords: DictVariable
    value: functools.partial[Any] | None = None

    @property
    def python_type(self) -> type:
        return functools.partial


@dataclass(eq=False)
class LibraryCallable(VariableTracker):
    """The callable object of the class `cls` that `make(*args, **kwargs)` has given, an itemgetter, say."""

    cls: type
    make: Callable[..., Any]
    args: tuple[VariableTracker, ...]
    kwargs: dict[str, VariableTracker]

    @property
    def python_type(self) -> type:
        return self.cls


@dataclass(eq=False)
class SuperVariable(VariableTracker):
    """super(cls, receiver)."""

    cls: type
    receiver: VariableTracker

    @property
    def python_type(self) -> type:
        return super
