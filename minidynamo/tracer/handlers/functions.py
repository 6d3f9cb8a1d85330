"""Owns the attributes of functions that are created during capture, and the fields of all functions.

Attributes that a program assigned to a function are in `attributes/functions.py`; calls are in `tracer/calls/call.py`.
"""

from __future__ import annotations

import types

from minidynamo.compat import docstring
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import key_of
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import BuiltinVariable, CellVariable, MethodVariable, NestedFunctionVariable
from minidynamo.variables.containers import DictVariable, TupleVariable


@registry.attributes(NestedFunctionVariable)
def _function_field(tx: Tracer, function: NestedFunctionVariable, name: str) -> VariableTracker | None:
    """Returns a field of a function that was created during capture; None if `name` is no field, or was assigned."""
    if name in function.attributes:
        return None
    if name == "__defaults__":
        return function.defaults or ConstantVariable(None)
    if name == "__kwdefaults__":
        return function.kwdefaults or ConstantVariable(None)
    if name == "__annotations__":
        return annotations_of(function)
    if name == "__doc__":
        return ConstantVariable(docstring(function.code))
    if name == "__code__":
        return ConstantVariable(function.code)
    if name == "__closure__":
        cells: list[VariableTracker] = [*function.closure]
        return TupleVariable(cells) if cells else ConstantVariable(None)
    return None


def annotations_of(function: NestedFunctionVariable) -> DictVariable:
    """Returns the dict of annotations, and creates it on first use."""
    annotations = function.annotations
    if isinstance(annotations, DictVariable):
        return annotations
    items = annotations.items if isinstance(annotations, TupleVariable) else []  # names and values alternate
    variable = DictVariable({key_of(name): value for name, value in zip(items[::2], items[1::2])})
    function.annotations = variable
    return variable


@registry.attributes(CellVariable)
def _cell_contents(tx: Tracer, cell: CellVariable, name: str) -> VariableTracker | None:
    """Returns the contents of a cell; None if the cell is empty or not read yet."""
    return cell.contents if name == "cell_contents" else None


@registry.method(types.FunctionType, "__call__")
def _call_function(
    tx: Tracer, function: VariableTracker, /, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    return tx.call(function, args, kwargs)


@registry.method(types.FunctionType, "__get__")
def _bind_function(
    tx: Tracer, function: VariableTracker, receiver: VariableTracker, owner: VariableTracker | None = None, /
) -> VariableTracker:
    if isinstance(receiver, ConstantVariable) and receiver.value is None:
        return function
    return MethodVariable(function, receiver)


def _comparison(name: str) -> registry.Handler:
    """Returns a handler that compares C functions: equal if function and bound object are the same; runs no user
    code."""

    def compare(tx: Tracer, function: VariableTracker, other: VariableTracker, /) -> VariableTracker:
        if other.python_type is not types.BuiltinFunctionType:
            return ConstantVariable(NotImplemented)
        if not isinstance(function, BuiltinVariable) or not isinstance(other, BuiltinVariable):
            tx.break_graph("MD207", f"builtin_function_or_method.{name}", why="One was bound while tracing.")
        return ConstantVariable(getattr(function.value, name)(other.value))

    return compare


for _name in ("__eq__", "__ne__"):
    registry.method(types.BuiltinFunctionType, _name)(_comparison(_name))
