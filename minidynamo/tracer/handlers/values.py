"""Owns the questions that every handler asks of its arguments: is it a constant, which index is it, which key.

It registers nothing.
"""

from __future__ import annotations

from typing import Any

from minidynamo.tracer.constants import NotConstant, as_constant, from_constant, key_of
from minidynamo.tracer.protocol import Tracer
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import BuiltinVariable, FunctionVariable, NestedFunctionVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import (
    DictKey,
    DictVariable,
    ListVariable,
    SetVariable,
    SliceVariable,
    TupleVariable,
)
from minidynamo.variables.objects import ClassVariable, ObjectVariable, PythonModuleVariable
from minidynamo.variables.tensors import TensorVariable

# Kinds whose hash and equality are those of the constant or of the object itself.
_PLAIN_KEYS = (
    ConstantVariable,
    ClassVariable,
    FunctionVariable,
    NestedFunctionVariable,
    BuiltinVariable,
    PythonModuleVariable,
    TensorVariable,
)
_UNHASHABLE = (ListVariable, DictVariable, SliceVariable)


def none() -> VariableTracker:
    """The tracker of None, which most mutating methods return."""
    return ConstantVariable(None)


def constant(value: Any) -> VariableTracker:
    """The tracker of a value that is made of constants."""
    return from_constant(value)


def class_has(cls: type, name: str) -> bool:
    """Whether instances of `cls` have the special method; unlike `hasattr`, the metaclass does not count."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None) is not None


def not_implemented() -> VariableTracker:
    """What a binary special method answers for an operand that it does not know."""
    return ConstantVariable(NotImplemented)


def is_constant(variable: VariableTracker) -> bool:
    """Whether the value is fully known while tracing."""
    try:
        as_constant(variable)
    except NotConstant:
        return False
    return True


def expect_constant(tx: Tracer, variable: VariableTracker, what: str) -> Any:
    """The value of a constant; for anything else the graph breaks. `what` names the use, as in "a slice bound"."""
    try:
        return as_constant(variable)
    except NotConstant:
        tx.break_graph(
            "MD230",
            f"{what} that is only known when the graph runs",
            why="Python needs the value itself to go on, and tracing has only its type.",
            fix="compute it from Python numbers or shapes, or keep the choice in tensors (torch.where, index_select)",
            marker=f"this is a {variable.python_type.__name__}",
        )


def expect_index(tx: Tracer, key: VariableTracker, owner: str) -> int | slice:
    """An int or slice for indexing a list, tuple or deque named `owner`; raises natively what Python raises."""
    if isinstance(key, ObjectVariable) and class_has(key.cls, "__index__"):
        key = tx.call_method(key, "__index__")
    value = expect_constant(tx, key, f"an index into a {owner}")
    if not isinstance(value, int | slice):
        tx.raises(TypeError(f"{owner} indices must be integers or slices, not {type(value).__name__}"))
    return value


def expect_key(tx: Tracer, variable: VariableTracker) -> DictKey:
    """The stand-in of a dict key or set element.

    A class with its own `__hash__` or `__eq__` would have to run them at each look-up; such keys break the graph.
    """
    if isinstance(variable, TupleVariable):
        for item in variable.items:
            expect_key(tx, item)
    elif isinstance(variable, _UNHASHABLE) or (isinstance(variable, SetVariable) and variable.cls is set):
        tx.raises(TypeError(f"unhashable type: '{variable.python_type.__name__}'"))
    elif not isinstance(variable, (*_PLAIN_KEYS, SetVariable)) and not _hashed_by_identity(variable):
        name = variable.python_type.__name__
        tx.break_graph(
            "MD232",
            f"a {name} with its own `__eq__` or `__hash__` is a dict key or set element",
            why=f"`{name}` decides itself when two of its objects are equal.",
            fix="Use a number, a string or a tuple of them as the key.",
        )
    return key_of(variable)


def _hashed_by_identity(variable: VariableTracker) -> bool:
    own = (vars(base) for base in variable.python_type.__mro__ if base is not object)
    return isinstance(variable, ObjectVariable) and not any("__hash__" in names or "__eq__" in names for names in own)
