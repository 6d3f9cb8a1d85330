"""Tests of minidynamo/tracer/handlers/random_numbers.py: draws that become inputs, and draws that break the graph."""

from __future__ import annotations

import random

import pytest
import torch

import minidynamo
from minidynamo.errors import Unsupported
from minidynamo.testing import assert_same_as_eager

GENERATOR = random.Random(1)
OWN = random.Random(2)
OWN.random = lambda: 0.5

REFUSED = {
    "pass objects of this class": lambda x: x * random.SystemRandom.uniform(random.SystemRandom(), 0, 1),
    "methods of its own": lambda x: x * OWN.uniform(0, 1),
    "larger": lambda x: x * GENERATOR.getrandbits(63),
    "other than plain numbers": lambda x: x * GENERATOR.uniform(0, x.dtype),
    "numbers that vary, for some": lambda x: x * GENERATOR.randrange(1, int(1 + x.shape[0])),
    "empty range": lambda x: x * GENERATOR.randint(2, 1),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_refused_is_said(why):
    with pytest.raises((Unsupported, ValueError), match=why):
        minidynamo.compile(REFUSED[why], backend="eager", fullgraph=True, dynamic=True)(torch.ones(3))


def test_tracing_draws_nothing():
    GENERATOR.seed(5)
    state = GENERATOR.getstate()

    @minidynamo.compile(backend="eager", fullgraph=True)
    def f(x):
        return x * GENERATOR.random() + GENERATOR.randint(0, 5)

    f(torch.ones(3))
    drawn = GENERATOR.getstate()
    GENERATOR.setstate(state)
    GENERATOR.random(), GENERATOR.randint(0, 5)
    assert GENERATOR.getstate() == drawn


def test_a_function_of_the_users_may_draw_in_between():
    @minidynamo.allow_in_graph
    def noise(x):
        return x + random.random()

    def f(x):
        return noise(x * random.random()) * random.random()

    compiled = minidynamo.compile(f, backend="eager")
    compiled(torch.ones(3))  # also runs the function on fake tensors
    for seed in range(3):
        random.seed(seed)
        expected, state = f(torch.ones(3)), random.getstate()
        random.seed(seed)
        assert torch.equal(compiled(torch.ones(3)), expected)
        assert random.getstate() == state


def test_a_generator_of_the_program_is_created_eagerly():
    def program(x):
        chance = random.Random(5)
        items = [1, 2, 3]
        chance.shuffle(items)
        return x * chance.random(), items, chance.sample(items, 2), chance.getrandbits(70)

    assert_same_as_eager(program, lambda: torch.ones(3), lambda: torch.ones(3))
