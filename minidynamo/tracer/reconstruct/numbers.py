"""Owns how computed numbers are rebuilt: by the same operations on the same objects.

Python decides, as in eager, whether an operation returns a new object or an operand. Numbers that have a source are not
here: `tracer/capture/residual.py` reads them."""

from __future__ import annotations

from minidynamo.tracer.reconstruct.builders import builds
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder
from minidynamo.variables.numbers import NumberVariable


@builds(NumberVariable, hint="number")
def _number(rebuild: Rebuilder, variable: NumberVariable) -> str:
    values = map(rebuild.value, variable.computation.operands)
    functions = {function.__name__: rebuild.names.constant(function, function.__name__) for function in (abs, max, min)}
    return variable.computation.text.format(*(v if v.isalnum() else f"({v})" for v in values), **functions)
