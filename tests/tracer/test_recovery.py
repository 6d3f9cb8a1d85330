"""Tests of minidynamo/tracer/recovery.py: what is held for a second run, and when it is too late for one."""

from __future__ import annotations

import random

import pytest
import torch

from benchmarks.memory import peak_bytes
from minidynamo.tracer.recovery import random_states, revive, states_of, versions_of, weakly_held


def test_what_is_held_comes_back_and_keeps_no_tensor_alive() -> None:
    x, items = torch.ones(2), [1]
    held = [weakly_held(x), weakly_held(items)]
    error = RuntimeError("first")
    values = revive(error, held)
    assert values[0] is x and values[1] is items
    del x, values
    with pytest.raises(RuntimeError, match="first") as caught:
        revive(error, held, "What was lost.")
    assert "already been freed" in caught.value.__notes__[0] and caught.value.__notes__[1] == "What was lost."


@pytest.mark.parametrize("place", ["argument", "list"])
def test_nothing_runs_twice_behind_a_write(place: str) -> None:
    x, y = torch.ones(2), torch.ones(2)
    versions = versions_of([3, x, [y]])
    held = [weakly_held(x), weakly_held(y)]
    assert revive(RuntimeError(), held, versions=versions)[1] is y
    (x if place == "argument" else y).add_(1)
    with pytest.raises(RuntimeError) as caught:
        revive(RuntimeError(), held, versions=versions)
    assert "written to" in caught.value.__notes__[0] and len(caught.value.__notes__) == 1


def test_writes_to_inference_tensors_are_not_counted() -> None:
    with torch.inference_mode():
        x = torch.ones(2)
    with pytest.raises(RuntimeError):
        revive(RuntimeError(), [weakly_held(x)], versions=versions_of([x]))


def test_nor_when_hooks_have_seen_what_was_saved() -> None:
    x = torch.ones(2)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t), pytest.raises(RuntimeError) as caught:
        revive(RuntimeError(), [weakly_held(x)])
    assert "hooks" in caught.value.__notes__[0]


def test_random_numbers_are_drawn_again_and_their_state_is_no_tensor() -> None:
    torch.randn(1)  # normal numbers are drawn in pairs, of which the generator keeps one
    assert peak_bytes(random_states) == 0
    states = random_states()
    drawn = [torch.randn(3), torch.rand(2)]
    revive(RuntimeError(), [], random=states)
    assert all(map(torch.equal, drawn, [torch.randn(3), torch.rand(2)]))


def test_so_are_those_of_pythons_generators() -> None:
    first, second = random.Random(1), random.Random(2)
    states = states_of(first, second)
    drawn = first.gauss(0, 1), first.gauss(0, 1), second.random()
    revive(RuntimeError(), [], drawn=states)
    assert drawn == (first.gauss(0, 1), first.gauss(0, 1), second.random())
