"""Owns the draws of residual programs: random numbers that a program draws, in its order, before the graph runs.

The choice of numbers that can be drawn early is not here (`handlers/random_numbers.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from minidynamo.core.names import Namespace
from minidynamo.guards.reader import Reader
from minidynamo.tracer.records.side_effects import Draw
from minidynamo.tracer.runtime.rollback import states_of


def print_draws(draws: Sequence[Draw], reader: Reader, names: Namespace, *, keeps: bool) -> tuple[str, list[str]]:
    """Returns the lines that draw, and the name of the generators' initial states ("" unless `keeps`).

    The reader completes the lines."""
    calls = [draw.call.template.format(*map(reader.read, draw.call.operands)) for draw in draws]  # each is new
    lines = [call if draw.number is None else f"{draw.number.name} = {call}" for draw, call in zip(draws, calls)]
    if not draws or not keeps:
        return "", lines
    before = names.fresh("drawn")
    generators = ", ".join(reader.read(generator) for generator in dict.fromkeys(draw.generator for draw in draws))
    return before, [f"{before} = {names.constant(states_of, 'states_of')}({generators})", *lines]
