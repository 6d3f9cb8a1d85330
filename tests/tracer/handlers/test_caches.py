"""What functions behind a cache give is read where the cache has it, if nobody can tell when they ran."""

from __future__ import annotations

import functools

import pytest
import torch

from minidynamo.guards.source import Called
from minidynamo.tracer.traced_frame import Break
from tests.tracer.capture import capture, targets

FOUND: list[int] = []
STATE = {"n": 2}


@functools.cache
def ones(n, *, fill=1):
    return torch.full((n,), fill)


@functools.cache
def numbers(n):
    return n * 2


@functools.cache
def random_numbers(n):
    return torch.rand(n)


@functools.cache
def notes(n):
    FOUND.append(n)
    return n


@functools.cache
def writes(n):
    return BUFFER.add_(n)


@functools.cache
def reads(n):
    return STATE["n"] * n


@functools.cache
def fails(n):
    raise ValueError(n)


@functools.cache
def takes(tensor):
    return tensor.shape


BUFFER = torch.zeros(2)


def test_a_tensor_lives_in_the_cache():
    traced = capture(lambda x: x * ones(2, fill=3) + ones(2, fill=3), torch.ones(2))
    places = {given.source.display(): type(given.source) for given in traced.inputs}
    assert places["ones(2, 3)"] is Called and len(places) == 2
    assert len(targets(traced)) == 2 and ones.cache_info().currsize == 1


def test_constants_need_no_cache():
    traced = capture(lambda x: x * numbers(4), torch.ones(2))
    assert not isinstance(traced.exit, Break) and numbers.cache_info().currsize == 0


def test_what_a_function_sees_is_that_of_its_first_call():
    numbers_of_state = [capture(lambda x: x * reads(4), torch.ones(2)).graph(torch.ones(2))[0] for _ in range(2)]
    STATE["n"] = 5
    numbers_of_state.append(capture(lambda x: x * reads(4), torch.ones(2)).graph(torch.ones(2))[0])
    assert [result.tolist() for result in numbers_of_state] == [[8, 8]] * 3


def changed_before(x, state):
    state["n"] = 7
    return x * reads(5)


def made_here(x, state):
    return takes(x * 2)


@pytest.mark.parametrize(
    "program",
    [
        lambda x, state: random_numbers(2) * x,
        lambda x, state: notes(2) * x,
        lambda x, state: writes(2) * x,
        lambda x, state: fails(2),
        lambda x, state: ones(**{"n": 2, "fi ll": 3}),
        changed_before,
        made_here,
    ],
    ids=["random", "effect", "write", "raises", "odd name", "changed before", "made here"],
)
def test_what_ends_the_graph(program):
    traced = capture(program, torch.ones(2), STATE)
    assert isinstance(traced.exit, Break) and not FOUND and BUFFER.tolist() == [0, 0]
    assert random_numbers.cache_info().currsize == 0
