"""Owns how numbers are rebuilt that the program has computed of others: by the same operations on the same objects.

Whether that gives a new object or one of the operands is for Python to decide, as it is where the program runs as
written. Numbers that live somewhere are read there, by `residual.py`.
"""

from __future__ import annotations

from minidynamo.tracer.reconstruct.builders import builds
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder
from minidynamo.variables.numbers import NumberVariable


@builds(NumberVariable, hint="number")
def _number(rebuild: Rebuilder, variable: NumberVariable) -> str:
    values = map(rebuild.value, variable.made.operands)
    return variable.made.text.format(*(value if value.isalnum() else f"({value})" for value in values))
