"""Owns what numpy computes of arrays from outside: numpy computes it in front of the graph, as in eager.

Of an array only the shape and the dtype are guarded, on which those of results depend; numbers in it may be others at
each call. What gives a second array over the same memory, or takes long, is left to Python. `numpy_arrays.py` calls
this, and has the arrays of constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from minidynamo.guards.source import Attr, Computed, Constant, Source
from minidynamo.tracer.constants import NotConstant, as_constant
from minidynamo.tracer.copies import NUMPY_SCALARS
from minidynamo.tracer.protocol import Tracer
from minidynamo.variables.arrays import ArrayVariable
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import SequenceVariable
from minidynamo.variables.objects import OpaqueVariable

LARGEST = 10_000  # elements: it is computed for the guards, and for the graph
_NUMBERS = (bool, int, float, *NUMPY_SCALARS)


def _arrays_in(variable: VariableTracker) -> Iterator[OpaqueVariable]:
    """The arrays from outside, or computed of some, that are an argument or items of it."""
    if isinstance(variable, OpaqueVariable) and type(variable.value) is np.ndarray and variable.source is not None:
        yield variable
    elif isinstance(variable, SequenceVariable) and variable.cls in (list, tuple):
        for item in variable.items:
            yield from _arrays_in(item)


def computed(
    tx: Tracer, function: Callable[..., Any], args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker]
) -> VariableTracker | None:
    """What a function of numpy gives for arrays from outside, which may be computed before the graph runs; None where
    it may not."""
    given = [*args, *kwargs.values()]
    outside = [array for variable in given for array in _arrays_in(variable)]
    if not outside or tx.graph.subgraph is not None or tx.graph.may_have_written():
        return None
    try:
        values, places = zip(*map(_value_and_place, given))
    except NotConstant:
        return None
    try:
        with np.errstate(all="raise"):
            result = function(*values[: len(args)], **dict(zip(kwargs, values[len(args) :])))
    except Exception:  # Python raises it, or warns
        return None
    if any(np.may_share_memory(result, array.value) for array in outside):
        return None
    for array in outside:
        _guard_facts(tx, array)
    spelled = [*(f"{{{k}}}" for k in range(1, len(args) + 1))]
    spelled += [f"{name}={{{k}}}" for k, name in enumerate(kwargs, len(args) + 1)]
    named = Constant(function, getattr(function, "__name__", "numpy"))
    source = Computed(f"{{0}}({', '.join(spelled)})", (named, *places))
    if type(result) is np.ndarray and result.dtype.kind in "biuf" and 0 < result.size <= LARGEST:
        return OpaqueVariable(result, source=source)
    return tx.wrap(result, source) if type(result) in _NUMBERS else None


def _value_and_place(variable: VariableTracker) -> tuple[Any, Source]:
    """What stands for an argument, and where it can be read; raises NotConstant."""
    if isinstance(variable, SequenceVariable) and any(_arrays_in(variable)):
        values, places = zip(*map(_value_and_place, variable.items))
        return values, Computed(f"({''.join(f'{{{k}}}, ' for k in range(len(places)))})", places)
    if isinstance(variable, OpaqueVariable) and any(_arrays_in(variable)):
        array, source = variable.value, variable.source
        if array.dtype.kind not in "biuf" or not 0 < array.size <= LARGEST or source is None:
            raise NotConstant("ndarray")
        only_read = array.view()
        only_read.setflags(write=False)
        return only_read, source
    if isinstance(variable, ArrayVariable) and variable.shared is None:
        return variable.value, Constant(variable.value, "array")
    value = as_constant(variable)
    return value, Constant(value, "given")


def _guard_facts(tx: Tracer, array: OpaqueVariable) -> None:
    """Guard what the shape and the dtype of a result depend on."""
    assert array.source is not None
    if not isinstance(array.source, Computed):
        for fact in ("shape", "dtype"):
            as_constant(tx.wrap(getattr(array.value, fact), Attr(array.source, fact)))
