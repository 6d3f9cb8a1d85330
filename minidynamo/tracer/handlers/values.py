"""Owns the checks and conversions of arguments that all handlers share: constants, indices, keys.

This module registers no handlers.
"""

from __future__ import annotations

import types
from typing import Any, NoReturn

from minidynamo.compat import name_in_errors
from minidynamo.errors import an
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant
from minidynamo.tracer.attributes import class_has, lookup_on_class
from minidynamo.tracer.frames.exceptions import without_message
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.dry_run import unobservable
from minidynamo.tracer.numbers import graph_numbers
from minidynamo.tracer.numbers.arithmetic import involves_number, specialized
from minidynamo.tracer.polyfills.containers import same_or_equal
from minidynamo.tracer.records.constants import (
    NotConstant,
    as_constant,
    from_constant,
    from_result,
    is_nan,
    key_of,
    overrides_method,
)
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.callables import (
    BuiltinVariable,
    FunctionVariable,
    LibraryCallable,
    NestedFunctionVariable,
)
from minidynamo.variables.containers import (
    DictKey,
    DictVariable,
    ListVariable,
    SetVariable,
    SliceVariable,
    TupleVariable,
)
from minidynamo.variables.objects import ClassVariable, ObjectVariable, PythonModuleVariable
from minidynamo.variables.tensors import ItemVariable, TensorVariable

# Trackers that hash and compare like the constant, or by identity of the object.
_HASHED_LIKE_CONSTANTS = (
    ConstantVariable,
    ClassVariable,
    FunctionVariable,
    NestedFunctionVariable,
    BuiltinVariable,
    LibraryCallable,
    PythonModuleVariable,
    TensorVariable,
)
_UNHASHABLE = (ListVariable, DictVariable, SliceVariable)


def none() -> VariableTracker:
    """Returns the tracker of None, the result of most mutating methods."""
    return ConstantVariable(None)


def constant(value: Any, *operands: VariableTracker) -> VariableTracker:
    """Returns the tracker of a value made of constants; an operand itself, if the value is the operand's object."""
    return from_result(value, operands, [as_constant(operand) for operand in operands])


def not_implemented() -> VariableTracker:
    """Returns NotImplemented, the answer of a binary special method to an unknown operand."""
    return ConstantVariable(NotImplemented)


def is_constant(variable: VariableTracker) -> bool:
    """Returns whether the value is fully known during capture, or is a number, which `as_constant` specializes."""
    if isinstance(variable, NumberVariable):
        return True
    if involves_number(variable):
        return False
    try:
        as_constant(variable)
    except NotConstant:
        return False
    return True


def expect_constant(tx: Tracer, variable: VariableTracker, what: str) -> Any:
    """Returns the value of a constant; breaks the graph otherwise. `what` names the use, as in "a slice bound"."""
    try:
        return as_constant(variable)
    except NotConstant:
        tx.break_graph(
            "MD230",
            f"{what} that is only known when the graph runs",
            why="Python needs the value itself to go on, and tracing has only its type.",
            fix="Compute it from Python numbers or shapes, or keep the choice in tensors (torch.where, index_select).",
            marker=f"this is {an(variable.python_type.__name__)}",
        )


def expect_index(tx: Tracer, key: VariableTracker, owner: str) -> int | slice:
    """Returns an int or slice for indexing a list, tuple or deque named `owner`; raises the errors of Python."""
    if isinstance(key, ObjectVariable) and issubclass(key.cls, int):
        key = key.storage or key  # C reads the number of an int subclass and ignores its `__index__`
    elif isinstance(key, ObjectVariable) and class_has(key.cls, "__index__"):
        key = tx.call_method(key, "__index__")
    value = expect_constant(tx, key, f"an index into a {owner}")
    if not isinstance(value, int | slice):
        tx.raises(without_message(TypeError))
    return value


def expect_key(tx: Tracer, variable: VariableTracker) -> DictKey:
    """Returns the tracked key for a dict key or set element.

    User methods `__hash__` and `__eq__` are traced, and the number of their calls must not be observable: rebuilding
    the container after the graph calls them again, and some operations reuse a stored hash.
    """
    variable = specialized(variable)
    if isinstance(variable, ObjectVariable | TupleVariable) and _has_own_equality(variable):
        with unobservable(tx, [variable], lambda: _refuse_key(tx, variable)):
            return DictKey(TracedKey(tx, variable, hash_of(tx, variable)), variable)
    if isinstance(variable, TupleVariable):
        return DictKey(tuple(expect_key(tx, item).token for item in variable.items), variable)
    if isinstance(variable, _UNHASHABLE) or _lookup_method(variable.python_type, "__hash__") is None:
        tx.raises(TypeError(f"unhashable type: '{name_in_errors(variable.python_type)}'"), exact=True)
    if is_nan(variable):
        tx.break_graph(
            "MD232",
            "a NaN is a dict key or set element",
            why="A NaN equals nothing, not even itself: only the same object finds it.",
            fix="Use `None`, a number or a string as the key.",
        )
    if _has_untraced_equality(variable):
        _refuse_key(tx, variable)
    if isinstance(variable, TensorVariable | ObjectVariable) and variable.source is not None:
        tx.graph.identity_keys[variable] = None
    if isinstance(variable, FunctionVariable):
        tx.guard(variable.source, GuardKind.IDENTITY, variable.value)
    return key_of(variable)


def _refuse_key(tx: Tracer, variable: VariableTracker) -> NoReturn:
    name = variable.python_type.__name__
    if isinstance(variable, ItemVariable):
        graph_numbers.break_on_value(tx, "a dict key or set element")
    tx.break_graph(
        "MD232",
        f"{an(name)} is a dict key or set element",
        why=f"`{name}` decides itself when two of its objects are equal.",
        fix="Use a number, a string or a tuple of them as the key.",
    )


class TracedKey:
    """A key whose class defines equality. Python's dict calls its `__eq__` and `__hash__` as for the real object."""

    def __init__(self, tx: Tracer, variable: VariableTracker, hashed: int) -> None:
        self.tx = tx
        self.variable = variable
        self.hashed = hashed

    def __hash__(self) -> int:
        return self.hashed

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TracedKey):
            right = other.variable
        elif isinstance(other, VariableTracker):
            right = other
        else:
            right = from_constant(other)
        with unobservable(self.tx, [self.variable, right], lambda: _refuse_key(self.tx, self.variable)):
            return self.tx.truth(self.tx.call(same_or_equal, [self.variable, right]))


class _Hashed:
    """An object with a known hash, for hashing tuples."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        return self.value


def hash_of(tx: Tracer, variable: VariableTracker) -> int:
    """Returns `hash(variable)`. Without `__hash__` it is the address, which only a real object has."""
    method = _lookup_method(variable.python_type, "__hash__")
    by_user = isinstance(variable, ObjectVariable | TupleVariable) and isinstance(method, types.FunctionType)
    by_user = by_user or overrides_method(variable.python_type, "__hash__")
    if isinstance(variable, TupleVariable) and not by_user:
        return hash(tuple([_Hashed(hash_of(tx, item)) for item in variable.items]))
    if method is None:
        tx.raises(TypeError(f"unhashable type: '{name_in_errors(variable.python_type)}'"), exact=True)
    if by_user:
        hashed = expect_constant(tx, tx.call_method(variable, "__hash__"), "a hash")
        if not isinstance(hashed, int):
            tx.raises(TypeError("__hash__ method should return an integer"), exact=True)
        return hash(_Hashed(hashed))  # may differ from the number itself
    if isinstance(variable, ObjectVariable) and variable.storage is not None and method is not object.__hash__:
        return hash_of(tx, variable.storage)
    if isinstance(variable, ObjectVariable) and variable.value is not None and method is object.__hash__:
        tx.guard(Constant(variable.cls, variable.cls.__name__), GuardKind.CLASS_ATTR, ("__hash__", method))
        tx.guard(variable.source, GuardKind.IDENTITY, variable.value)
        return hash(variable.value)
    return hash(expect_constant(tx, variable, "a hash"))


def _lookup_method(cls: type, name: str) -> object:
    """Returns the attribute `name` of the class or its bases; None if missing."""
    found, owner = lookup_on_class(cls, name)
    return None if owner is None else found


def _has_own_equality(variable: ObjectVariable | TupleVariable) -> bool:
    """Returns whether the class defines equality or hash in Python."""
    methods = (_lookup_method(variable.cls, name) for name in ("__hash__", "__eq__"))
    return any(isinstance(method, types.FunctionType | None) for method in methods)


def _has_untraced_equality(variable: VariableTracker) -> bool:
    """Returns whether untraced code defines the equality of the value."""
    if isinstance(variable, ConstantVariable):
        return overrides_method(type(variable.value), "__eq__", "__hash__")
    if isinstance(variable, ClassVariable):
        return type(variable.value).__eq__ is not type.__eq__ or type(variable.value).__hash__ is not type.__hash__
    return not isinstance(variable, (*_HASHED_LIKE_CONSTANTS, SetVariable)) and not _hashed_by_identity(variable)


def _hashed_by_identity(variable: VariableTracker) -> bool:
    if not isinstance(variable, ObjectVariable):
        return False
    if isinstance(variable.storage, ConstantVariable | TupleVariable):
        return True  # hashed by its value
    namespaces = (vars(base) for base in variable.python_type.__mro__ if base is not object)
    return not any("__hash__" in names or "__eq__" in names for names in namespaces)
