"""Owns the trackers of callables: functions, methods, builtins, cells, partial and super objects.

Calls are in `tracer/calls/call.py`.
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
    """A closure cell."""

    #: None if the cell is empty or, for an external cell, not read yet.
    contents: VariableTracker | None = None
    #: The real cell, if it is an external value.
    cell: types.CellType | None = None

    @property
    def python_type(self) -> type:
        return types.CellType


@dataclass(eq=False)
class FunctionVariable(VariableTracker):
    """A Python function that is an external value."""

    value: types.FunctionType

    @property
    def python_type(self) -> type:
        return types.FunctionType


@dataclass(eq=False)
class NestedFunctionVariable(VariableTracker):
    """A Python function that was made during capture (def, lambda, comprehension)."""

    code: types.CodeType
    #: The globals of the function.
    namespace: dict[str, Any]
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
    """A bound method."""

    #: A Python or C function.
    function: VariableTracker
    #: The first argument.
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
    """A `functools.partial` object."""

    function: VariableTracker
    args: TupleVariable
    #: The dict of the partial object itself: programs may change it.
    keywords: DictVariable
    #: The real object, if it is an external value; it can have attributes of its own.
    value: functools.partial[Any] | None = None

    @property
    def python_type(self) -> type:
        return functools.partial


@dataclass(eq=False)
class LibraryCallable(VariableTracker):
    """A callable object of a class written in C, such as an itemgetter, that `make(*args, **kwargs)` returned."""

    cls: type
    make: Callable[..., Any]
    args: tuple[VariableTracker, ...]
    kwargs: dict[str, VariableTracker]

    @property
    def python_type(self) -> type:
        return self.cls


@dataclass(eq=False)
class SuperVariable(VariableTracker):
    """`super(cls, receiver)`."""

    cls: type
    receiver: VariableTracker

    @property
    def python_type(self) -> type:
        return super
