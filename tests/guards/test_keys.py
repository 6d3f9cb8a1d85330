"""Dicts whose keys are compared by identity, as caches by module and state by parameter are."""

from __future__ import annotations

import weakref

import pytest
import torch

import minidynamo


class Key:
    pass


@pytest.mark.parametrize("make", [Key, lambda: torch.nn.Linear(2, 2), lambda: torch.ones(1)])
@pytest.mark.parametrize("is_watched", [False, True])
def test_replaced_values_keep_their_version(make, is_watched):
    key = make()
    reference = weakref.ref(key) if is_watched else None
    cache = {key: torch.zeros(4)}

    @minidynamo.compile(backend="eager")
    def add(x):
        cache[key] = cache[key] + x
        return cache[key] * 2

    for n in range(4):
        assert torch.equal(add(torch.ones(4)), torch.full((4,), 2.0 * n + 2))
    assert compiled_once(add) and (reference is None or reference() is key)


def compiled_once(fn):
    return (fn.stats.compiles, fn.stats.graph_breaks) == (1, 0)


def test_a_removed_key_dies_at_the_removal():
    dead = []

    @minidynamo.compile(backend="eager")
    def remove(cache, x):
        value = cache.popitem()[1] + x
        return value * 2, len(dead)

    for is_watched in (False, True, False):
        key = Key()
        if is_watched:
            weakref.finalize(key, dead.append, 1)
        cache = {key: torch.zeros(2)}
        del key
        expected = int(is_watched) + len(dead)
        assert remove(cache, torch.ones(2))[1] == expected
