"""Owns what numpy computes of numbers alone: ufuncs and reductions run while tracing, and give numpy's own scalars.

An array keeps its contents in C: what makes or takes one, or the values of tensors, breaks the graph. That scalars are
constants is in `tracer/constants.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minidynamo.tracer import registry
from minidynamo.tracer.constants import NUMPY_SCALARS, NotConstant, as_constant, from_constant
from minidynamo.tracer.exceptions import says, tracked
from minidynamo.tracer.protocol import Tracer
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import BuiltinVariable

registry.fold_type(*NUMPY_SCALARS)
registry.fold(np.dtype, np.finfo, np.iinfo)

_PURE: tuple[Any, ...] = (
    *(np.all, np.allclose, np.amax, np.amin, np.any, np.argmax, np.argmin, np.array_equal, np.around, np.clip),
    *(np.count_nonzero, np.dot, np.isclose, np.max, np.mean, np.median, np.min, np.ndim, np.prod, np.ptp, np.round),
    *(np.size, np.std, np.sum, np.var),
)


def _of_numbers(
    tx: Tracer, function: Any, args: tuple[VariableTracker, ...], kwargs: dict[str, VariableTracker]
) -> VariableTracker:
    name = f"np.{function.__name__}()"
    try:
        plain = [as_constant(arg) for arg in args]
        named = {key: as_constant(value) for key, value in kwargs.items()}
    except NotConstant as error:
        tx.break_graph("MD208", f"{name} is called with a {error}", why="It runs while tracing, on numbers.")
    try:
        result = function(*plain, **named)
    except Exception as error:
        tx.raises(tracked(error, exact=says(error)))
    try:
        return from_constant(result)
    except NotConstant as error:
        tx.break_graph("MD208", f"{name} gives a {error}", why="Its contents can neither be tracked nor guarded.")


@registry.instances(np.ufunc)
def _ufunc(
    tx: Tracer, function: BuiltinVariable, /, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    return _of_numbers(tx, function.value, args, kwargs)


def _pure(function: Any) -> registry.Handler:
    def handler(tx: Tracer, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        return _of_numbers(tx, function, args, kwargs)

    return handler


for _function in {id(function): function for function in _PURE}.values():
    registry.function(_function)(_pure(_function))


@registry.instances(type(np.prod))
def _other_function(
    tx: Tracer, function: BuiltinVariable, /, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    why = "It makes or takes arrays, whose contents can neither be tracked nor guarded."
    tx.break_graph("MD207", f"np.{function.value.__name__}() cannot be captured", why=why)
