"""Values put into containers and taken out again may be anything, until they are read."""

# Comprehensions are under test.
# ruff: noqa: C416

from __future__ import annotations

import collections
import types

import pytest
import torch

import minidynamo

X = torch.arange(4.0)
VALUES = [1, "a", None, torch.ones(2), torch.ones(3).double(), [1], {}, torch.relu, types, int, len, 2.5, True]


def same(one, other):
    if isinstance(one, torch.Tensor) or type(one) is not type(other):
        return one is other or (isinstance(one, torch.Tensor) and torch.equal(one, other))
    if isinstance(one, dict):
        return [*one] == [*other] and all(map(same, one.values(), other.values()))
    if isinstance(one, (list, tuple, collections.deque)):
        return len(one) == len(other) and all(map(same, one, other))
    return one is other or one == other


@pytest.mark.parametrize("make", [list, tuple, lambda items: dict(enumerate(items))])
def test_a_loop_that_only_moves_asks_for_the_length_alone(make):
    def collects(x, items):
        return x * 2, [item for item in (items.values() if isinstance(items, dict) else items)]

    compiled = minidynamo.compile(collects, backend="eager")
    for value in VALUES:
        assert same(compiled(X, make([value, 1])), collects(X, make([value, 1])))
    assert compiled.stats.compiles == 1
    assert same(compiled(X, make([1, 2, 3])), collects(X, make([1, 2, 3]))) and compiled.stats.compiles == 2


def test_what_was_moved_crosses_a_break():
    def program(x, v):
        held = [v, {"v": v}]
        minidynamo.graph_break()
        return x * 2, held

    compiled = minidynamo.compile(program, backend="eager")
    for value in VALUES:
        made = compiled(X, value)[1]
        assert made[0] is value and made[1]["v"] is value
