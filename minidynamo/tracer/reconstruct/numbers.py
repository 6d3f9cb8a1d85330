"""Owns how computed numbers are rebuilt: by the same operations on the same objects; and seeded generators of numbers.

Python decides, as in eager, whether an operation returns a new object or an operand. Numbers that have a source are not
here: `tracer/capture/residual.py` reads them."""

from __future__ import annotations

import random

from minidynamo.tracer.reconstruct.builders import builds
from minidynamo.tracer.reconstruct.rebuilder import Rebuilder
from minidynamo.variables.numbers import NumberVariable, SeededGenerator


@builds(NumberVariable, hint="number")
def _number(rebuild: Rebuilder, variable: NumberVariable) -> str:
    values = map(rebuild.value, variable.computation.operands)
    functions = {function.__name__: rebuild.names.constant(function, function.__name__) for function in (abs, max, min)}
    return variable.computation.text.format(*(v if v.isalnum() else f"({v})" for v in values), **functions)


@builds(SeededGenerator, hint="generator")
def _generator(rebuild: Rebuilder, variable: SeededGenerator) -> str:
    state = rebuild.names.constant(variable.value.getstate(), "state")
    return f"{rebuild.constant(generator_in)}({state})"


def generator_in(state: tuple[object, ...]) -> random.Random:
    """Returns a generator in the given state."""
    generator = random.Random(0)
    generator.setstate(state)
    return generator
