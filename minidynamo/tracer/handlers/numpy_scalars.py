"""Owns numpy's functions of numbers: ufuncs and reductions run during capture, and return numpy scalars.

Arrays of constants are in `numpy_arrays.py`; functions of other arrays, or of tensor values, break the graph. Numpy
scalars are constants, see `tracer/records/constants.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minidynamo.tracer.calls.operators import folded
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.numpy_arrays import run
from minidynamo.tracer.numbers import numpy_numbers
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import as_constant
from minidynamo.tracer.records.copies import NUMPY_SCALARS
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import BuiltinVariable

registry.fold_type(*NUMPY_SCALARS)
registry.fold(np.dtype, np.finfo, np.iinfo)

_PURE: tuple[Any, ...] = (
    *(np.all, np.allclose, np.amax, np.amin, np.any, np.argmax, np.argmin, np.array_equal, np.around, np.clip),
    *(np.count_nonzero, np.dot, np.isclose, np.max, np.mean, np.median, np.min, np.ndim, np.prod, np.ptp, np.round),
    *(np.size, np.std, np.sum, np.var),
)


@registry.instances(np.ufunc)
def _ufunc(
    tx: Tracer, function: BuiltinVariable, /, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    varying = None if kwargs else numpy_numbers.numpy_call(tx, function.value, args)
    return run(tx, function.value, args, kwargs) if varying is None else varying


@registry.method(np.generic, "item")
def _item(tx: Tracer, number: VariableTracker, /, *args: VariableTracker) -> VariableTracker:
    plain = None if args else numpy_numbers.python_number(tx, number)
    if plain is not None:
        return plain
    method = getattr(number.python_type, "item")  # noqa: B009 (type checkers do not know the attribute)
    result = folded(tx, method, [number, *args], [as_constant(operand) for operand in (number, *args)], {})
    assert result is not None
    return result


def _pure(function: Any) -> registry.Handler:
    def handler(tx: Tracer, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        varying = None if kwargs else numpy_numbers.numpy_call(tx, function, args)
        return run(tx, function, args, kwargs) if varying is None else varying

    return handler


for _function in {id(function): function for function in _PURE}.values():
    registry.function(_function)(_pure(_function))


@registry.instances(type(np.prod))
def _other_function(
    tx: Tracer, function: BuiltinVariable, /, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    why = "minidynamo does not know whether it runs on constants alone."
    tx.break_graph("MD207", f"np.{function.value.__name__}() cannot be captured", why=why)
