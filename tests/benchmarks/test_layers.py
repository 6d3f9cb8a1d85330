"""The table of compile time by the number of layers."""

from __future__ import annotations

import pytest

from benchmarks import layers

LINEAR = {4: 1.2, 8: 2.2, 16: 4.6}


def taken(own, other):
    return {(name, count): found for name, part in zip(layers.SYSTEMS, (own, other)) for count, found in part.items()}


def test_a_row_has_the_seconds_of_a_layer_and_of_a_further_layer():
    rows = layers.table(taken(LINEAR, {count: 10.0 * count for count in LINEAR}))
    assert rows[0] == ["minidynamo", "4", "1.20", "0.300", "", "0.030"]
    assert rows[1] == ["minidynamo", "8", "2.20", "0.275", "0.250", "0.028"]
    assert rows[-1] == ["torch.compile", "16", "160.00", "10.000", "10.000", ""]


def test_growth_and_a_large_share_are_misses():
    slow = {count: 10.0 * count for count in LINEAR}
    assert layers.misses(taken(LINEAR, slow)) == []
    assert layers.misses(taken({4: 1.0, 16: 8.0}, slow)) == [
        "4 layers take 0.250 s per layer, the mean is 0.375",
        "16 layers take 0.500 s per layer, the mean is 0.375",
    ]
    assert layers.misses(taken(LINEAR, {4: 6.0, 8: 80.0, 16: 160.0})) == [
        "4 layers take 0.200 of torch.compile's time; the limit is 0.15"
    ]


@pytest.mark.cpp
def test_a_first_step_runs():
    assert all(seconds > 0 for seconds in layers.first_step("minidynamo", 1))
