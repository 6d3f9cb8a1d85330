"""Random programs equal eager wherever a graph break is inserted."""

from __future__ import annotations

import ast
import random

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.random import test_random_exceptions
from tests.end_to_end.random.breaks_at_random import passed, printed, with_breaks
from tests.end_to_end.random.random_surroundings import SurroundedProgram, SurroundedWriter, write_program
from tests.end_to_end.random.test_random_surroundings import differences

pytestmark = pytest.mark.filterwarnings("ignore")

NAMES = {"passed": passed, "printed": printed, "minidynamo": minidynamo}


class SeededWriter(SurroundedWriter):
    """Draws from a generator of Python's instead of hypothesis's."""

    def __init__(self, seed):
        super().__init__(draw=None)
        self.random = random.Random(seed)

    def pick(self, choices):
        return self.random.choice(choices)

    def roll(self):
        return self.random.randrange(100)


class BrokenProgram(SurroundedProgram):
    def build(self):
        names = super().build()
        names.update(NAMES)
        return names


def check_surroundings(seed):
    program = write_program(SeededWriter(seed))
    broken = BrokenProgram(with_breaks(program.source, seed), program.changes)
    assert differences(broken) == [], broken


def check_exceptions(seed):
    source = with_breaks(test_random_exceptions.Writer(seed).program(), seed)
    names = vars(test_random_exceptions) | NAMES
    exec(compile(source, f"<program {seed}>", "exec"), names)
    try:
        assert_same_as_eager(names["f"], *(lambda n=n: (torch.randn(3), [0] * n, {}) for n in (0, 1, 0)))
    except AssertionError as error:
        raise AssertionError(f"{error}\n{source}") from error


def test_breaks_are_put_everywhere_and_change_nothing_else():
    source = "def f(x):\n    with g(x) as y:\n        return [k + y for k in x if k]\n"
    found = {with_breaks(source, seed) for seed in range(200)}
    for place in ("with passed(g(x))", "with g(passed(x))", "k + passed(y)", "in passed(x)", "if passed(k)"):
        assert any(place in text for text in found)
    assert any("passed(0)\n        return" in text for text in found)
    names = {"g": __import__("contextlib").nullcontext, "minidynamo": minidynamo, "printed": printed}
    for text in found:
        ast.parse(text)
        exec(text, names | {"passed": lambda value: value})


@pytest.mark.parametrize("seed", range(2))
def test_programs_with_surroundings(seed):
    check_surroundings(seed)


@pytest.mark.parametrize("seed", range(5))
def test_programs_with_exceptions(seed):
    check_exceptions(seed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("check", [check_surroundings, check_exceptions])
@pytest.mark.parametrize("first", range(100, 600, 100))
def test_many_programs(check, first):
    for seed in range(first, first + 100):
        check(seed)
