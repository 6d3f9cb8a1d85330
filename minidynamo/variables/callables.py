"""Owns the trackers of callables (functions, methods, builtins, cells, partial and super objects, gradient functions),
and of the context managers that the tracer models itself.

Calls are in `tracer/calls/call.py`. Context managers written in Python are plain objects and are traced through their
methods.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch.fx

from minidynamo.core.records import record
from minidynamo.graph.func_transforms import PullBack, Transformation
from minidynamo.graph.torch_settings import Settings
from minidynamo.variables.base import OF_CLS, OF_VALUE, NumberVariable, VariableTracker
from minidynamo.variables.containers import DictVariable, TupleVariable
from minidynamo.variables.tensors import TensorVariable


@record(eq=False)
class CellVariable(VariableTracker):
    """A closure cell."""

    python_type = types.CellType
    #: None if the cell is empty or, for an external cell, not read yet.
    contents: VariableTracker | None = None
    #: The real cell, if it is an external value.
    cell: types.CellType | None = None


@dataclass(eq=False)
class FunctionVariable(VariableTracker):
    """A Python function that is an external value."""

    python_type = types.FunctionType
    value: types.FunctionType


@record(eq=False)
class NestedFunctionVariable(VariableTracker):
    """A Python function that was created during capture (def, lambda, comprehension)."""

    python_type = types.FunctionType
    code: types.CodeType
    #: The globals of the function.
    namespace: dict[str, Any]
    qualname: str
    defaults: VariableTracker | None = None
    kwdefaults: VariableTracker | None = None
    annotations: VariableTracker | None = None
    closure: tuple[CellVariable, ...] = ()
    attributes: dict[str, VariableTracker] = field(default_factory=dict)


@record(eq=False)
class MethodVariable(VariableTracker):
    """A bound method."""

    python_type = types.MethodType
    #: A Python or C function.
    function: VariableTracker
    #: The first argument.
    receiver: VariableTracker


@record(eq=False)
class BuiltinVariable(VariableTracker):
    """A callable that is not traced into: a C function, a torch operator, a method descriptor."""

    python_type = OF_VALUE
    value: Any


@record(eq=False)
class BoundBuiltin(VariableTracker):
    """A built-in method of a tracked value (`[].append`, `"".join`, `tensor.add`) before it is called."""

    receiver: VariableTracker
    name: str

    @property
    def python_type(self) -> type:
        found = inspect.getattr_static(self.receiver.python_type, self.name, None)
        return types.MethodWrapperType if isinstance(found, types.WrapperDescriptorType) else types.BuiltinMethodType


@record(eq=False)
class PartialVariable(VariableTracker):
    """A `functools.partial` object."""

    python_type = functools.partial
    function: VariableTracker
    args: TupleVariable
    #: The dict of the partial object itself: programs may change it.
    keywords: DictVariable
    #: The real object, if it is an external value; it can have attributes of its own.
    value: functools.partial[Any] | None = None


@record(eq=False)
class LibraryCallable(VariableTracker):
    """A callable object of a class written in C, such as an itemgetter, that `make(*args, **kwargs)` returned."""

    python_type = OF_CLS
    cls: type
    make: Callable[..., Any]
    args: tuple[VariableTracker, ...]
    kwargs: dict[str, VariableTracker]


@record(eq=False)
class SuperVariable(VariableTracker):
    """`super(cls, receiver)`."""

    python_type = super
    cls: type
    receiver: VariableTracker


@record(eq=False)
class PullBackVariable(VariableTracker):
    """The gradient function of `torch.func.vjp`: `transformation` over `subgraph`, a node, at the values `inputs`."""

    python_type = PullBack
    transformation: Transformation
    subgraph: torch.fx.Node
    module: torch.fx.GraphModule
    #: The inputs of the subgraph, the primals last.
    inputs: list[TensorVariable | NumberVariable]
    #: The number of primals.
    primals: int
    #: The version counter of each input at the call of `vjp`.
    versions: tuple[int | None, ...]
    #: The torch settings at the call of `vjp`.
    settings: Settings


@record(eq=False)
class ContextVariable(VariableTracker):
    """A context manager such as torch.no_grad(): `factory(*args)` makes the real one at run time."""

    factory: Callable[..., Any]
    args: tuple[Any, ...] = ()
    #: The grad mode to restore on exit; None before the manager is entered.
    saved: Any = None
    #: For managers that need a real `__enter__`: the number of open blocks of the same kind at entry; None while not
    #: open.
    depth: int | None = None

    @property
    def python_type(self) -> type:
        return self.factory if isinstance(self.factory, type) else object


@record(eq=False)
class ContextExitVariable(VariableTracker):
    """The `__exit__` of an entered context manager, on the stack."""

    python_type = object
    context: ContextVariable
