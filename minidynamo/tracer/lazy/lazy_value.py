"""Owns values from outside that a program has only moved so far: nothing is guarded but that they are there.

Frames move them between stack and locals, into and out of callees, to what is returned and to attributes; whoever works
with one looks at it first. That makes its tracker, with guards.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant, is_read_anew
from minidynamo.tracer.protocol import Tracer
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.objects import LazyVariable, ObjectVariable
from minidynamo.variables.tensors import TensorVariable

_HEAP_TYPE = 1 << 9  # set for classes that programs make
# Classes whose instances are all true.
_TRUE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type)


def realize(tx: Tracer, variable: VariableTracker) -> VariableTracker:
    """The tracker to work with."""
    return tx.wrap(variable.value, variable.source) if isinstance(variable, LazyVariable) else variable


def realized(tx: Tracer, variable: VariableTracker) -> VariableTracker:
    """The tracker of a value that was unread when it was put somewhere, if it has been read elsewhere since."""
    known = tx.graph.known(variable.source) if isinstance(variable, LazyVariable) and variable.source else None
    return variable if known is None else known


def realize_all(
    tx: Tracer, args: Iterable[VariableTracker], kwargs: Mapping[str, VariableTracker]
) -> tuple[list[VariableTracker], dict[str, VariableTracker]]:
    """The trackers to work with, of the arguments of a call."""
    return [realize(tx, arg) for arg in args], {name: realize(tx, value) for name, value in kwargs.items()}


def is_none(tx: Tracer, variable: VariableTracker) -> bool:
    """Whether the value is None, which is all that is guarded of one that nobody looks at otherwise."""
    if isinstance(variable, LazyVariable) and variable.value is not None:
        tx.guard(variable.source, GuardKind.NOT_NONE)
        return False
    known = realize(tx, variable)
    return isinstance(known, ConstantVariable) and known.python_type is type(None)


def same_lazy_object(tx: Tracer, left: VariableTracker, right: VariableTracker) -> bool | None:
    """Whether two values are one object, where one has only been moved and the other arrived, too; None for others.

    Nothing else is guarded.
    """
    left, right = realized(tx, left), realized(tx, right)
    if not isinstance(left, LazyVariable):
        left, right = right, left
    if not isinstance(left, LazyVariable) or left.source is None or right.source is None:
        return None
    if is_read_anew(left.source) or is_read_anew(right.source):
        return None
    if left.source == right.source:
        return True
    if isinstance(right, LazyVariable):
        same = left.value is right.value
    elif isinstance(right, ObjectVariable | TensorVariable) and not isinstance(right.source, Constant):
        same = tx.graph.tracker_of(left.value) is right
    else:
        return None
    if same:
        tx.guard(left.source, GuardKind.SAME_OBJECT, right.source)
    else:
        tx.guard(left.source, GuardKind.DISTINCT_OBJECTS, (right.source,))
    return same


def class_of(tx: Tracer, variable: VariableTracker) -> type:
    """`type(variable)`, which is all that is guarded of one that nobody looks at otherwise.

    Of objects of classes that programs make more is guarded: what these classes have.
    """
    variable = realized(tx, variable)
    cls = variable.python_type
    if not isinstance(variable, LazyVariable) or cls.__flags__ & _HEAP_TYPE:
        return realize(tx, variable).python_type
    tx.guard(variable.source, GuardKind.TYPE, cls)
    return cls


def truth(tx: Tracer, variable: VariableTracker) -> bool:
    """`bool(variable)`; of a function, class or module only the class is guarded."""
    if isinstance(variable, LazyVariable) and type(variable.value) in _TRUE:
        tx.guard(variable.source, GuardKind.TYPE, type(variable.value))
        return True
    return tx.truth(realize(tx, variable))
