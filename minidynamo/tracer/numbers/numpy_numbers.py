"""Owns real numpy scalars that differ from call to call: a schedule from `np.linspace`, an index from `np.arange`.

Torch reads a numpy scalar as a Python number, and `float`, `int` and `math` do too: from then on it is a number of
`arithmetic.py`, and no longer handled here. An operation of numpy on a scalar is computed by numpy before the graph, as
in eager; its result is again an unread numpy scalar. Reading a scalar specializes it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minidynamo.guards.source import Computed, Constant
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.numbers.arithmetic import SYMBOLS, binary, call_computed, computed, is_lazy_scalar
from minidynamo.tracer.records.constants import reads_as_python
from minidynamo.tracer.records.immutable_classes import NUMPY_SCALARS
from minidynamo.tracer.records.operator_table import COMPARISONS
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.containers import SliceVariable, TupleVariable

_COMPARISONS = frozenset(COMPARISONS.values())
_UNARY = {operator.neg: "-{0}", operator.pos: "+{0}"}
_LARGEST = 2**62
# Classes that convert any number to a numpy scalar.
FLOATS = (np.float16, np.float32, np.float64)
INTS = (np.int32, np.int64)
# Scalars that numpy compares with Python numbers as Python does.
_COMPARABLE = (np.float64, np.int64)


def python_number(tx: Tracer, variable: VariableTracker) -> NumberVariable | None:
    """Returns the Python number of a numpy scalar that varies; None for anything else, and for a known value."""
    source = variable.source
    if not is_lazy_scalar(variable) or source is None:
        return None
    assert isinstance(variable, ConstantVariable)
    convert = int if isinstance(variable.unguarded_value, np.integer) else float
    value = convert(variable.unguarded_value)
    number_source = Computed("{0}({1})", (Constant(convert, convert.__name__), source))
    is_computed = isinstance(source, Computed) and abs(value) < _LARGEST  # by the frame, from a scalar that varies
    if not (is_computed or tx.graph.shapes.varies(number_source, value, source)):
        return None
    if isinstance(value, int):
        return tx.graph.integer(value, number_source)
    known = tx.graph.known(number_source)
    return known if isinstance(known, NumberVariable) else tx.graph.floating(value, number_source)


def python_arguments(
    tx: Tracer, target: Any, args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker]
) -> tuple[Sequence[VariableTracker], Mapping[str, VariableTracker]]:
    """Returns the arguments of a torch function that reads numpy scalars as Python numbers."""
    if not any(map(is_lazy_scalar, (*args, *kwargs.values()))):
        return args, kwargs

    def read(arg: VariableTracker) -> VariableTracker:
        return (python_number(tx, arg) if reads_as_python(target, arg) else None) or arg

    return [read(arg) for arg in args], {name: read(arg) for name, arg in kwargs.items()}


def python_index(tx: Tracer, key: VariableTracker) -> VariableTracker:
    """Returns the subscript of a tensor, with numpy ints as Python ints."""
    if isinstance(key, TupleVariable):
        items = [python_index(tx, item) for item in key.items]
        return key if all(map(operator.is_, items, key.items)) else TupleVariable(items)
    if isinstance(key, SliceVariable):
        parts = [python_index(tx, part) for part in (key.start, key.stop, key.step)]
        return SliceVariable(*parts) if any(isinstance(part, NumberVariable) for part in parts) else key
    return (python_number(tx, key) or key) if issubclass(key.python_type, np.integer) else key


def unary(tx: Tracer, function: Callable[..., Any], operand: VariableTracker) -> VariableTracker | None:
    """Applies an operator to a numpy scalar that varies; None for all else."""
    template = _UNARY.get(function)
    return numpy_call(tx, function, [operand], template) if template and is_lazy_scalar(operand) else None


def numpy_binary(
    tx: Tracer, function: Callable[..., Any], left: VariableTracker, right: VariableTracker
) -> VariableTracker | None:
    """Applies an operator to two numbers, at least one a numpy scalar that varies; None for all else."""
    if not is_lazy_scalar(left) and not is_lazy_scalar(right):
        return None
    if function in _COMPARISONS:
        return _compared(tx, function, left, right)
    symbol = SYMBOLS.get(function)
    return None if symbol is None else numpy_call(tx, function, [left, right], f"{{0}} {symbol} {{1}}")


def numpy_call(
    tx: Tracer, function: Callable[..., Any], operands: Sequence[VariableTracker], template: str = ""
) -> VariableTracker | None:
    """Applies a numpy function, or the operator in the template, to numbers, at least one varying.

    None for anything else, and if numpy warns."""
    varying = [operand for operand in operands if python_number(tx, operand) is not None]  # records all values
    if not varying and not any(isinstance(operand, NumberVariable) for operand in operands):
        return None
    if not all(map(_is_number, operands)):
        return None
    with np.errstate(all="raise"):
        return computed(tx, function, template, operands) if template else call_computed(tx, function, operands, {})


def _compared(
    tx: Tracer, function: Callable[..., Any], left: VariableTracker, right: VariableTracker
) -> VariableTracker | None:
    """Returns the result of a comparison as numpy's True or False, with a guard on the result alone."""
    if not all(_compares_as_python_does(operand) for operand in (left, right)):
        return None
    numbers = [python_number(tx, operand) or operand for operand in (left, right)]
    if not any(isinstance(number, NumberVariable) for number in numbers):
        return None
    answer = binary(tx, function, *numbers)
    return ConstantVariable(np.bool_(answer.value)) if isinstance(answer, ConstantVariable) else None


def _compares_as_python_does(operand: VariableTracker) -> bool:
    if not isinstance(operand, ConstantVariable | NumberVariable):
        return False
    value = operand.unguarded_value
    return type(value) in (*_COMPARABLE, int, float) and abs(value) < 2**53


def _is_number(operand: VariableTracker) -> bool:
    if isinstance(operand, NumberVariable):
        return True
    return isinstance(operand, ConstantVariable) and type(operand.unguarded_value) in (int, float, bool, *NUMPY_SCALARS)
