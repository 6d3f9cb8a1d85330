"""Generators that a program seeds: their draws are known while tracing, and continue like eager's."""

from __future__ import annotations

import random

import pytest
import torch

import minidynamo
from minidynamo.errors import Unsupported

CAPTURED = {}
LEFT_TO_PYTHON = {}


def captured(program):
    CAPTURED[program.__name__] = program
    return program


def left_to_python(program):
    LEFT_TO_PYTHON[program.__name__] = program
    return program


@captured
def numbers(x):
    rng = random.Random(5)
    drawn = [rng.random(), rng.uniform(1, b=2), rng.gauss(0, 1), rng.gauss(0, 1), rng.randint(1, 9)]
    drawn.append(rng.getrandbits(70))
    return x * rng.random(), drawn, random.Random("text").randrange(5), isinstance(rng, random.Random)


@captured
def picked_tensors(x):
    rng = random.Random(1)
    parts = [x, x + 1, x + 2, x + 3]
    chosen = rng.choice(parts)
    rng.shuffle(parts)
    return chosen, parts, rng.sample(parts, k=2), rng.choices(parts, [1, 2, 3, 4], k=3), rng.choice("abc")


@captured
def places(x):
    rng = random.Random(2)
    return x[rng.sample(range(4), 4)], x[: rng.randint(1, 3)], rng.choice((torch.sin, torch.cos))(x)


@captured
def drops_layers(x):
    rng = random.Random(3)
    for layer in (torch.sin, torch.cos, torch.tanh, torch.exp):
        if rng.random() < 0.5:
            x = layer(x)
    return x


@captured
def leaves_the_frame(x):
    rng = random.Random(7)
    rng.gauss(0, 1), rng.random()
    return x + 1, {"rng": rng, "same": rng}


def pick(rng, items):
    return rng.choice(items), rng.random()


@captured
def in_callees(x):
    rng = random.Random(7)
    return [x * sum(pick(rng, [1, 2, 3])) for _ in range(3)]


@left_to_python
def goes_on_behind_a_break(x):
    rng = random.Random(7)
    a = rng.random()
    b = 1 if x.sum() > 0 else 2
    return x * a + rng.random(), b


@left_to_python
def no_seed(x):
    return x + 1, random.Random().random() < 2


@left_to_python
def state_is_shown(x):
    rng = random.Random(7)
    rng.random()
    return x + rng.random(), rng.getstate(), rng.gauss_next


@left_to_python
def raises(x):
    rng = random.Random(7)
    try:
        rng.randint(3, 1)
    except ValueError as error:
        return x + rng.random(), str(error)


@left_to_python
def picks_of_a_dict_view(x):
    rng = random.Random(7)
    return x * rng.choice(list({1: 2}.items()))[1], rng.choice({0: 5}), rng.sample([1, 1], 2, counts=[2, 3])


def shown(value):
    if isinstance(value, dict):
        assert value["rng"] is value["same"]
        return value["rng"].getstate(), value["rng"].gauss(0, 1)
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    return value.tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("name", CAPTURED)
def test_captured(name):
    compiled = minidynamo.compile(CAPTURED[name], backend="eager", fullgraph=True)
    for x in (torch.ones(4), torch.arange(4.0)):
        state = random.getstate()
        assert shown(compiled(x)) == shown(CAPTURED[name](x))
        assert random.getstate() == state


@pytest.mark.parametrize("name", LEFT_TO_PYTHON)
def test_left_to_python(name):
    compiled = minidynamo.compile(LEFT_TO_PYTHON[name], backend="eager")
    for x in (torch.ones(4), torch.arange(4.0)):
        assert shown(compiled(x)) == shown(LEFT_TO_PYTHON[name](x))
    with pytest.raises(Unsupported):
        minidynamo.compile(LEFT_TO_PYTHON[name], backend="eager", fullgraph=True)(torch.ones(4))


def test_a_seed_that_varies_is_left_to_python():
    def program(x, seed):
        return x * random.Random(seed).random()

    compiled = minidynamo.compile(program, backend="eager")
    for seed in range(5):
        assert torch.equal(compiled(torch.ones(4), seed), program(torch.ones(4), seed))
    assert compiled.stats.recompiles <= 2
