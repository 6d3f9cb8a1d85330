"""The record of items whose kind differs from call to call."""

from __future__ import annotations

import random
from typing import Any

import torch

import minidynamo
from minidynamo.guards.guard import Guard
from minidynamo.guards.guard import GuardKind as K
from minidynamo.guards.profile import FrameProfile
from minidynamo.guards.recompiles import failures
from minidynamo.guards.source import Item, Local, stable_name
from minidynamo.guards.varying_items import LEAST_ITEMS, VaryingItems, fits, joined

BATCH = Local("batch")


def _learned(expected: list[object], found: list[object]) -> set[str]:
    """Returns the patterns learned from a version that expects other items than a call has."""
    guards = []
    for position, item in enumerate(expected):
        kind, wanted = (K.IDENTITY, item) if item is None or isinstance(item, bool) else (K.TYPE, type(item))
        guards.append(Guard(Item(Item(BATCH, position), 2), kind, wanted))
    items = VaryingItems()
    items.learn(failures(guards, {"batch": [(0, 0, item) for item in found]}))
    return items.patterns


def test_items_vary_if_several_change_in_different_ways() -> None:
    tensor: Any = torch.ones(1)
    assert _learned([tensor, None, 1.5], [None, tensor, 1.5]) == {"L['batch'][*][2]"}
    assert _learned([True, False], [False, True]) == {"L['batch'][*][2]"}
    assert _learned([True, None], [None, True]) == {"L['batch'][*][2]"}
    assert not _learned([None, None, None], [tensor, tensor, None])  # filled once
    assert not _learned([tensor, None], [tensor, tensor])
    assert not _learned([tensor, 1.5], [tensor, 2.5])


def _numbers_learned(expected: list[float], found: list[float]) -> set[str]:
    guards = [Guard(Item(Item(BATCH, k), 1), K.EQUALS, number) for k, number in enumerate(expected)]
    items = VaryingItems()
    items.learn(failures(guards, {"batch": [(0, number) for number in found]}))
    assert not items.patterns
    return items.numbers


def test_all_numbers_vary_if_several_change() -> None:
    assert _numbers_learned([1, 0, 1, 1], [0, 1, 1, 0]) == {"L['batch'][*][1]"}
    assert _numbers_learned([0.5, 1.5, 2.5], [1.5, 2.5, 0.5]) == {"L['batch'][*][1]"}
    assert not _numbers_learned([1, 0, 1, 1], [0, 1, 1, 1])
    assert not _numbers_learned([1, 1, 1], [1.5, 1.5, 1.5])  # of another class

    profile = FrameProfile(items=VaryingItems(numbers={"L['batch'][*][1]"}))
    assert [profile.varies(f"L['batch'][3][{k}]", 7) for k in (0, 1)] == [False, True]
    assert not FrameProfile(False, items=profile.items).varies("L['batch'][3][1]", 7)


def test_the_actions_of_a_replay_memory_vary_at_once() -> None:
    """Each sample has some actions at the positions at which the last sample had them."""

    def chosen(batch: list[tuple[torch.Tensor, int]], values: torch.Tensor) -> torch.Tensor:
        states, actions = zip(*batch)
        return torch.stack(states).sum() + values.gather(1, torch.tensor(actions)[:, None]).sum()

    compiled = minidynamo.compile(chosen, backend="eager", limit_policy="raise")
    generator = random.Random(0)
    for _ in range(12):
        batch = [(torch.ones(2) * k, generator.randrange(2)) for k in range(16)]
        values = torch.arange(32.0).view(16, 2)
        assert torch.equal(compiled(batch, values), chosen(batch, values))
    assert compiled.stats.compiles == 2


def test_patterns_stand_for_positions() -> None:
    pattern = joined(joined("", "L['batch'][3][2]"), "L['batch'][14][2]")
    assert pattern == "L['batch'][*][2]" and joined(pattern, "L['batch'][3][2]") == pattern
    assert fits(pattern, "L['batch'][0][2]") and not fits(pattern, "L['batch'][0][1]")
    assert not fits(pattern, "L['batch'][0]") and not fits(pattern, "L['other'][0][2]")


def test_items_of_long_computed_sequences_vary() -> None:
    items = VaryingItems(computed={"mask", "pair", "number"})
    items.add_computed({"mask": [True] * LEAST_ITEMS, "pair": (1, 2), "number": 3})
    assert items == VaryingItems({"L['mask'][*]"}) and items.has(Item(Local("mask"), 4))
    assert stable_name(Item(Local("mask"), 4)) == "L['mask'][4]"
