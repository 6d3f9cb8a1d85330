"""Owns real numbers of numpy's that differ from call to call: a schedule from `np.linspace`, an index from `np.arange`.

torch takes such a number for Python's, and so do `float`, `int` and `math`: from there on it is one of `arithmetic.py`.
What numpy makes of one with other numbers is computed by numpy in front of the graph, as eager would; it is a number of
numpy's again, which nobody has read so far. Whoever reads one takes it for a constant.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Computed, Constant, PlainValue, Source
from minidynamo.tracer.numbers.arithmetic import binary, computed_text
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records.constants import reads_as_plain
from minidynamo.tracer.records.copies import NUMPY_SCALARS
from minidynamo.tracer.records.operator_table import ARITHMETIC, BITWISE, COMPARISONS
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import SliceVariable, TupleVariable
from minidynamo.variables.numbers import NumberVariable

_SYMBOLS = {function: symbol for symbol, function in (ARITHMETIC | BITWISE).items() if symbol != "@"}
_COMPARISONS = frozenset(COMPARISONS.values())
_UNARY = {operator.neg: "-{0}", operator.pos: "+{0}"}
_LARGEST = 2**62
# Classes that make a number of any other.
FLOATS = (np.float16, np.float32, np.float64)
INTS = (np.int32, np.int64)
# Numbers that numpy compares with Python's as Python compares its own.
_COMPARED = (np.float64, np.int64)


def plain(tx: Tracer, variable: VariableTracker) -> NumberVariable | None:
    """Python's number for one of numpy's that varies; None for anything else, and where its value is known anyway."""
    source = variable.source
    if not _is_unread(variable) or source is None:
        return None
    assert isinstance(variable, ConstantVariable)
    convert = int if isinstance(variable.here, np.integer) else float
    value = convert(variable.here)
    place = Computed("{0}({1})", (Constant(convert, convert.__name__), source))
    is_made = isinstance(source, Computed) and abs(value) < _LARGEST  # here, of one that varies
    if not (is_made or tx.graph.shapes.varies(place, value, source)):
        return None
    if isinstance(value, int):
        return tx.graph.integer(value, place)
    known = tx.graph.known(place)
    return known if isinstance(known, NumberVariable) else tx.graph.floating(value, place)


def plain_arguments(
    tx: Tracer, target: Any, args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker]
) -> tuple[Sequence[VariableTracker], Mapping[str, VariableTracker]]:
    """The arguments of a function of torch that reads numpy's numbers as Python's."""
    if not any(map(_is_unread, (*args, *kwargs.values()))):
        return args, kwargs

    def read(arg: VariableTracker) -> VariableTracker:
        return (plain(tx, arg) if reads_as_plain(target, arg) else None) or arg

    return [read(arg) for arg in args], {name: read(arg) for name, arg in kwargs.items()}


def plain_index(tx: Tracer, key: VariableTracker) -> VariableTracker:
    """What a tensor is subscripted with, where it reads numpy's ints as Python's."""
    if isinstance(key, TupleVariable):
        items = [plain_index(tx, item) for item in key.items]
        return key if all(map(operator.is_, items, key.items)) else TupleVariable(items)
    if isinstance(key, SliceVariable):
        parts = [plain_index(tx, part) for part in (key.start, key.stop, key.step)]
        return SliceVariable(*parts) if any(isinstance(part, NumberVariable) for part in parts) else key
    return (plain(tx, key) or key) if issubclass(key.python_type, np.integer) else key


def unary(tx: Tracer, function: Callable[..., Any], operand: VariableTracker) -> VariableTracker | None:
    """An operator on a number of numpy's that varies; None for all else."""
    template = _UNARY.get(function)
    return _computed(tx, function, template, [operand]) if template and _is_unread(operand) else None


def combined(
    tx: Tracer, function: Callable[..., Any], left: VariableTracker, right: VariableTracker
) -> VariableTracker | None:
    """An operator on two numbers, one of which is numpy's and varies; None for all else."""
    if not _is_unread(left) and not _is_unread(right):
        return None
    if function in _COMPARISONS:
        return _compared(tx, function, left, right)
    symbol = _SYMBOLS.get(function)
    return None if symbol is None else _computed(tx, function, f"{{0}} {symbol} {{1}}", [left, right])


def called(tx: Tracer, function: Callable[..., Any], operands: Sequence[VariableTracker]) -> VariableTracker | None:
    """A function of numpy of numbers, one of which varies; None for all else."""
    if not any(_is_unread(operand) or isinstance(operand, NumberVariable) for operand in operands):
        return None
    taken = ", ".join(f"{{{k}}}" for k in range(len(operands)))
    return _computed(tx, function, f"{{{len(operands)}}}({taken})", operands, Constant(function, function.__name__))


def _computed(
    tx: Tracer,
    function: Callable[..., Any],
    template: str,
    operands: Sequence[VariableTracker],
    *others: Source,
) -> ConstantVariable | None:
    """What numpy gives for the operands; None where that is no number, or where it warns."""
    varying = [operand for operand in operands if plain(tx, operand) is not None]  # which notes the values of all
    if not varying and not any(isinstance(operand, NumberVariable) for operand in operands):
        return None
    places = [place for operand in operands if (place := _place(operand)) is not None]
    given = [operand.here for operand in operands if isinstance(operand, ConstantVariable | NumberVariable)]
    if len(places) != len(operands):
        return None
    try:
        with np.errstate(all="raise"):
            value = function(*given)
    except (ArithmeticError, TypeError, ValueError):
        return None
    source = computed_text(template, *places, *others)
    if source is None or type(value) not in NUMPY_SCALARS or not _is_real(value):
        return None
    known = tx.graph.known(source)
    if isinstance(known, ConstantVariable):
        return known
    return ConstantVariable(value, source=source, on_read=tx.graph.guard_when_asked(source, GuardKind.EQUALS, value))


def _compared(
    tx: Tracer, function: Callable[..., Any], left: VariableTracker, right: VariableTracker
) -> VariableTracker | None:
    """The answer, as numpy's True or False; the answer is all that is guarded."""
    if not all(_compares_as_python_does(operand) for operand in (left, right)):
        return None
    numbers = [plain(tx, operand) or operand for operand in (left, right)]
    if not any(isinstance(number, NumberVariable) for number in numbers):
        return None
    answer = binary(tx, function, *numbers)
    return ConstantVariable(np.bool_(answer.value)) if isinstance(answer, ConstantVariable) else None


def _compares_as_python_does(operand: VariableTracker) -> bool:
    if not isinstance(operand, ConstantVariable | NumberVariable):
        return False
    value = operand.here
    return type(value) in (*_COMPARED, int, float) and abs(value) < 2**53


def _place(operand: VariableTracker) -> Source | None:
    """Where an operand can be read, or the constant that it is."""
    if isinstance(operand, NumberVariable) or _is_unread(operand):
        return operand.source
    if isinstance(operand, ConstantVariable) and type(operand.here) in (int, float, bool, *NUMPY_SCALARS):
        return Constant(operand.value, repr(operand.value))
    return None


def _is_unread(variable: VariableTracker) -> bool:
    """Whether it is a real number of numpy's whose value nobody has needed so far."""
    if not isinstance(variable, ConstantVariable) or variable.is_read or type(variable.here) not in NUMPY_SCALARS:
        return False
    return _is_real(variable.here) and not isinstance(variable.source, PlainValue | Constant | None)


def _is_real(value: object) -> bool:
    return isinstance(value, np.integer | np.floating)
