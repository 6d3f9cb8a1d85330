"""Owns `is`, and the default `==` of objects, which compares identities.

Two arguments may be different objects in this call and the same object in the next call, so each answer is guarded.
Equality of values is not here (`operators.py`)."""

from __future__ import annotations

import operator

from minidynamo.errors import Diagnostic, SkipFrame
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Computed, Constant, is_new_each_read
from minidynamo.guards.values import same_value
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.lazy.lazy_value import same_lazy_object
from minidynamo.tracer.numbers import arithmetic
from minidynamo.tracer.numbers.graph_numbers import is_choice
from minidynamo.tracer.polyfills.containers import same_or_equal
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import as_constant, is_nan
from minidynamo.tracer.records.immutable_classes import may_be_distinct
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.callables import BuiltinVariable, FunctionVariable
from minidynamo.variables.containers import SliceVariable, TupleVariable
from minidynamo.variables.objects import ClassVariable, PythonModuleVariable


def _is_same(left: VariableTracker, right: VariableTracker) -> bool:
    """Returns whether both are certainly the same object; two symbolic numbers may or may not be the same object."""
    with_value = (ConstantVariable, ClassVariable, BuiltinVariable, FunctionVariable, PythonModuleVariable)
    if isinstance(left, NumberVariable) or isinstance(right, NumberVariable):
        return left is right
    if isinstance(left, with_value) and isinstance(right, with_value):
        return left.python_type is right.python_type and left.value is right.value
    if isinstance(left, TupleVariable) and isinstance(right, TupleVariable) and left.real is not None:
        return left.real is right.real
    return left is right or _are_empty_tuples(left, right)


def _are_empty_tuples(*tuples: VariableTracker) -> bool:
    """Returns whether both are the empty tuple, which is unique. External tuples were compared by identity."""
    plain = [variable for variable in tuples if isinstance(variable, TupleVariable) and variable.cls is tuple]
    new = [variable for variable in plain if variable.source is None]
    # New tuples come first: if they have items, the lengths of external tuples are not read.
    return len(plain) == len(tuples) and bool(new) and not any(variable.items for variable in [*new, *plain])


def is_identical(tx: Tracer, left: VariableTracker, right: VariableTracker) -> bool:
    """Returns `left is right`, with guards: two external objects of a class may be identical in the next call."""
    same = same_lazy_object(tx, left, right)
    if same is not None:
        return same
    left, right = left.realize(), right.realize()
    if left is not right and any(map(is_choice, (left, right))) and left.python_type is right.python_type:
        what = "`is` compares a tensor that `min` or `max` returns"
        tx.break_graph("MD230", what, why="Which object it is depends on the values.", fix="Compare the values.")
    if left is not right and left.python_type is right.python_type:  # of numbers, the answer depends on the values
        values = arithmetic.specialized(left), arithmetic.specialized(right)
        if _may_be_distinct(*values):
            return _is_same_plain_value(tx, left, right)
        left, right = values
    if _is_same(left, right):
        return True
    if _are_varying_slices(left, right):
        what = "`is` compares slices whose bounds vary"
        tx.break_graph("MD230", what, why="Whether they are one object is only known when the program runs.")
    known = isinstance(left, ConstantVariable | NumberVariable)  # their values are guarded
    if not known and left.source is not None and right.source is not None and left.python_type is right.python_type:
        tx.guard(left.source, GuardKind.DISTINCT_OBJECTS, (right.source,))
    return False


def _are_varying_slices(*operands: VariableTracker) -> bool:
    """Returns whether both are external slices and one is tracked by its bounds: a slice may have two trackers."""
    are_external = all(each.python_type is slice and each.source is not None for each in operands)
    return are_external and any(isinstance(each, SliceVariable) for each in operands)


def _may_be_distinct(left: VariableTracker, right: VariableTracker) -> bool:
    """Returns whether two plain values are equal, and may or may not be the same object."""
    if not isinstance(left, ConstantVariable) or not isinstance(right, ConstantVariable):
        return False
    return may_be_distinct(left.value) and same_value(left.value, right.value)


def _is_same_plain_value(tx: Tracer, left: VariableTracker, right: VariableTracker) -> bool:
    """Returns `left is right` for equal numbers or texts, whose objects differ from call to call."""
    operands = (left, right)
    if any(isinstance(each, NumberVariable) for each in operands):
        what = "`is` compares two equal numbers"
        why = "Whether they are one object is only known when the program runs."
        if any(map(_is_computed, operands)):  # its identity is lost in the graph
            raise SkipFrame(Diagnostic("MD230", what, why=why, fix="Compare with `==`.", where=tx.frames[0].location))
        tx.break_graph("MD230", what, why=why, fix="Compare with `==`.")
    same = _is_same(left, right)
    if any(is_new_each_read(each.source) for each in operands):
        return same
    external, other = operands if left.source is not None else (right, left)
    if external.source is not None:
        other_source = other.source or Constant(as_constant(other), "constant")
        kind, expected = (
            (GuardKind.SAME_OBJECT, other_source) if same else (GuardKind.DISTINCT_OBJECTS, (other_source,))
        )
        tx.guard(external.source, kind, expected)
    return same


def _is_computed(variable: VariableTracker) -> bool:
    """Returns whether the program computed the number: it is not an argument, nor an external attribute or item."""
    node = variable.node if isinstance(variable, NumberVariable) else None
    is_read = variable.source is not None and not isinstance(variable.source, Computed)
    return not is_read or (node is not None and node.op != "placeholder")


@registry.function(same_or_equal)
def _same_or_equal(tx: Tracer, left: VariableTracker, right: VariableTracker, /) -> VariableTracker:
    """Compares with `is`, then `==`; for equal numbers the identity need not be known."""
    if arithmetic.is_lazy(left) and left.python_type is not float:  # a float may be a NaN
        return ConstantVariable(tx.truth(tx.call(operator.eq, [left, right])))
    are_plain = all(isinstance(each, ConstantVariable | NumberVariable) for each in (left, right))
    if are_plain and (is_nan(left) or is_nan(right)):  # a NaN equals nothing; only its identity counts
        return ConstantVariable(is_identical(tx, left, right))
    if _is_same(left, right) or tx.truth(tx.call(operator.eq, [left, right])):
        return ConstantVariable(True)
    if not are_plain:  # an identical object is found without its `__eq__`
        return ConstantVariable(is_identical(tx, left, right))
    arithmetic.guard_distinct_nans(tx, left, right)
    return ConstantVariable(False)


@registry.method(object, "__eq__")
def _object_eq(tx: Tracer, left: VariableTracker, right: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(True if is_identical(tx, left, right) else NotImplemented)


@registry.method(object, "__ne__")
def _object_ne(tx: Tracer, left: VariableTracker, right: VariableTracker, /) -> VariableTracker:
    result = tx.call_method(left, "__eq__", [right])
    if isinstance(result, ConstantVariable) and result.python_type is type(NotImplemented):
        return result
    return ConstantVariable(not tx.truth(result))


@registry.function(operator.is_)
@registry.accepts_lazy("left", "right")
def _is(tx: Tracer, left: VariableTracker, right: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(is_identical(tx, left, right))


@registry.function(operator.is_not)
@registry.accepts_lazy("left", "right")
def _is_not(tx: Tracer, left: VariableTracker, right: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(not is_identical(tx, left, right))
