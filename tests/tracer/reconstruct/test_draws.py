"""Tests of minidynamo/tracer/reconstruct/draws.py: the lines by which residual programs draw random numbers."""

from __future__ import annotations

import random

from minidynamo.core.names import Namespace
from minidynamo.guards.reader import Reader
from minidynamo.guards.source import Attr, Computed, Constant, Drawn, Local
from minidynamo.tracer.capture.residual import print_draws
from minidynamo.tracer.records.side_effects import Draw


def printed(*, keeps: bool) -> tuple[str, list[str], Namespace]:
    generator, uniform = Attr(Local("m"), "generator"), Constant(random.Random.uniform, "uniform")
    call = Computed("{0}({1}, 0, 1)", (uniform, generator))
    names = Namespace(["m", "drawn_0", "drawn_1"])
    reader = Reader(names)
    draws = [Draw(Drawn(f"drawn_{number}"), generator, call, late=False) for number in range(2)]
    before, lines = print_draws(draws, reader, names, keeps=keeps)
    return before, reader.finished(lines), names


def test_equal_draws_are_draws_of_their_own() -> None:
    before, lines, _ = printed(keeps=False)
    assert before == ""
    assert lines == ["drawn_0 = uniform((t := m.generator), 0, 1)", "drawn_1 = uniform(t, 0, 1)"]


def test_the_state_is_kept_once_for_each_generator() -> None:
    before, lines, names = printed(keeps=True)
    assert lines[0] == f"{before} = states_of((t := m.generator))" and len(lines) == 3

    class Model:
        generator = random.Random(4)

    found = {**names.values, "m": Model}
    exec("\n".join(lines), found)
    expected = random.Random(4)
    assert (found["drawn_0"], found["drawn_1"]) == (expected.uniform(0, 1), expected.uniform(0, 1))
    assert found[before] == [(Model.generator, random.Random(4).getstate())]
