"""Owns how numbers are rebuilt that the program has computed of others: by the same operations on the same objects;
and how generators of numbers are, that it has made with a seed.

Whether that gives a new object or one of the operands is for Python to decide, as it is where the program runs as
written. Numbers that live somewhere are read there, by `tracer/capture/residual.py`.
"""

from __future__ import annotations

import random

from minidynamo.tracer.reconstruct.builders import builds
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder
from minidynamo.variables.numbers import NumberVariable, SeededGenerator


@builds(NumberVariable, hint="number")
def _number(rebuild: Rebuilder, variable: NumberVariable) -> str:
    values = map(rebuild.value, variable.made.operands)
    functions = {function.__name__: rebuild.names.constant(function, function.__name__) for function in (abs, max, min)}
    return variable.made.text.format(*(v if v.isalnum() else f"({v})" for v in values), **functions)


@builds(SeededGenerator, hint="generator")
def _generator(rebuild: Rebuilder, variable: SeededGenerator) -> str:
    state = rebuild.names.constant(variable.value.getstate(), "state")
    return f"{rebuild.constant(generator_in)}({state})"


def generator_in(state: tuple[object, ...]) -> random.Random:
    """A generator in the state."""
    generator = random.Random(0)
    generator.setstate(state)
    return generator
