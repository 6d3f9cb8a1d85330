"""Owns `is`, and the `==` of objects without one of their own, which asks the same.

Two objects that are given may be one in the next call, so what `is` answers about them is guarded.
"""

from __future__ import annotations

import operator

from minidynamo.errors import Diagnostic, SkipFrame
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Computed, Constant
from minidynamo.guards.writers import same_value
from minidynamo.tracer.lazy.lazy_value import realize, same_lazy_object
from minidynamo.tracer.numbers import arithmetic
from minidynamo.tracer.polyfills.lists import same_or_equal
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import as_constant, is_nan
from minidynamo.tracer.records.copies import can_be_two
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import BuiltinVariable, FunctionVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import SliceVariable, TupleVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.objects import ClassVariable, IdVariable, PythonModuleVariable


def _is_same(left: VariableTracker, right: VariableTracker) -> bool:
    """Whether `left is right` for sure; two numbers that are not known may be one object or two."""
    valued = (ConstantVariable, ClassVariable, BuiltinVariable, FunctionVariable, PythonModuleVariable)
    if isinstance(left, NumberVariable) or isinstance(right, NumberVariable):
        return left is right
    if isinstance(left, valued) and isinstance(right, valued):
        return left.python_type is right.python_type and left.value is right.value
    if isinstance(left, IdVariable) and isinstance(right, IdVariable):
        return left.of is right.of
    if isinstance(left, TupleVariable) and isinstance(right, TupleVariable) and left.real is not None:
        return left.real is right.real
    return left is right or _are_empty_tuples(left, right)


def _are_empty_tuples(*tuples: VariableTracker) -> bool:
    """Whether two tuples are the one that is empty. Those from outside have been compared as the objects they are."""
    plain = [variable for variable in tuples if isinstance(variable, TupleVariable) and variable.cls is tuple]
    new = [variable for variable in plain if variable.source is None]
    return len(plain) == len(tuples) and bool(new) and not any(variable.items for variable in [*new, *plain])


def is_the_same(tx: Tracer, left: VariableTracker, right: VariableTracker) -> bool:
    """`left is right`, guarded: two objects of one class that the program is given may be one in the next call."""
    moved = same_lazy_object(tx, left, right)
    if moved is not None:
        return moved
    left, right = realize(tx, left), realize(tx, right)
    if left is not right and left.python_type is right.python_type:  # for numbers that hangs on their values
        values = arithmetic.pinned(left), arithmetic.pinned(right)
        if _may_be_two(*values):
            return _is_the_same_plain_value(tx, left, right)
        left, right = values
    if _is_same(left, right):
        return True
    if _are_varying_slices(left, right):
        what = "`is` compares slices whose bounds vary"
        tx.break_graph("MD230", what, why="Whether they are one object is only known when the program runs.")
    known = isinstance(left, ConstantVariable | NumberVariable)  # whose value is guarded
    if not known and left.source is not None and right.source is not None and left.python_type is right.python_type:
        tx.guard(left.source, GuardKind.DISTINCT_OBJECTS, (right.source,))
    return False


def _are_varying_slices(*operands: VariableTracker) -> bool:
    """Whether both are slices from outside, one of them known by its bounds: the same one may have two trackers."""
    are_outside = all(each.python_type is slice and each.source is not None for each in operands)
    return are_outside and any(isinstance(each, SliceVariable) for each in operands)


def _may_be_two(left: VariableTracker, right: VariableTracker) -> bool:
    """Whether two plain values are equal, and can be one object or two."""
    if not isinstance(left, ConstantVariable) or not isinstance(right, ConstantVariable):
        return False
    return can_be_two(left.value) and same_value(left.value, right.value)


def _is_the_same_plain_value(tx: Tracer, left: VariableTracker, right: VariableTracker) -> bool:
    """`left is right` for equal numbers or texts: which objects hold them differs from call to call."""
    operands = (left, right)
    if any(isinstance(each, NumberVariable) for each in operands):
        what = "`is` compares two equal numbers"
        why = "Whether they are one object is only known when the program runs."
        if any(map(_is_computed, operands)):  # which is lost when the graph computes it
            raise SkipFrame(Diagnostic("MD230", what, why=why, fix="compare with `==`", where=tx.frames[0].location))
        tx.break_graph("MD230", what, why=why, fix="compare with `==`")
    same = _is_same(left, right)
    constants = [each for each in operands if isinstance(each, ConstantVariable)]
    for each in constants:
        each.identify()
    if any(each.read_anew for each in constants):
        return same
    outside, other = operands if left.source is not None else (right, left)
    if outside.source is not None:
        place = other.source or Constant(as_constant(other), "constant")
        kind, expected = (GuardKind.SAME_OBJECT, place) if same else (GuardKind.DISTINCT_OBJECTS, (place,))
        tx.guard(outside.source, kind, expected)
    return same


def _is_computed(variable: VariableTracker) -> bool:
    """Whether the program has made the number: it is no argument, and no attribute or item from outside."""
    node = variable.node if isinstance(variable, NumberVariable) else None
    is_read = variable.source is not None and not isinstance(variable.source, Computed)
    return not is_read or (node is not None and node.op != "placeholder")


@registry.function(same_or_equal)
def _same_or_equal(tx: Tracer, left: VariableTracker, right: VariableTracker, /) -> VariableTracker:
    """Equal numbers need not be looked at for being one object."""
    if arithmetic.is_lazy(left) and left.python_type is not float:  # not a NaN, which equals itself in no other way
        return ConstantVariable(tx.truth(tx.call(operator.eq, [left, right])))
    are_plain = all(isinstance(each, ConstantVariable | NumberVariable) for each in (left, right))
    if are_plain and (is_nan(left) or is_nan(right)):  # which equals nothing, and is found as the object that it is
        return ConstantVariable(is_the_same(tx, left, right))
    if _is_same(left, right) or tx.truth(tx.call(operator.eq, [left, right])):
        return ConstantVariable(True)
    if not are_plain:  # one object is found whatever its `__eq__` says
        return ConstantVariable(is_the_same(tx, left, right))
    arithmetic.refuse_nan(tx, left, right)
    return ConstantVariable(False)


@registry.method(object, "__eq__")
def _object_eq(tx: Tracer, left: VariableTracker, right: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(True if is_the_same(tx, left, right) else NotImplemented)


@registry.method(object, "__ne__")
def _object_ne(tx: Tracer, left: VariableTracker, right: VariableTracker, /) -> VariableTracker:
    result = tx.call_method(left, "__eq__", [right])
    if isinstance(result, ConstantVariable) and result.here is NotImplemented:
        return result
    return ConstantVariable(not tx.truth(result))


@registry.function(operator.is_)
@registry.accepts_lazy("left", "right")
def _is(tx: Tracer, left: VariableTracker, right: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(is_the_same(tx, left, right))


@registry.function(operator.is_not)
@registry.accepts_lazy("left", "right")
def _is_not(tx: Tracer, left: VariableTracker, right: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(not is_the_same(tx, left, right))
