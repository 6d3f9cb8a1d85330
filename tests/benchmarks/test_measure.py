from __future__ import annotations

import pytest

from benchmarks.measure import Limit, Result, interleaved


def result(mine, other, limit=1.0):
    return Result("x", "ms", {"minidynamo": mine, "eager": other}, (Limit("eager", limit),))


def test_functions_take_turns():
    order = []
    functions = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    samples = interleaved(functions, rounds=2, calls=1)
    assert order[-4:] == ["a", "b", "a", "b"]
    assert {name: len(values) for name, values in samples.items()} == {"a": 2, "b": 2}


def test_ratios_are_taken_pair_by_pair():
    # A disturbance that doubles both samples of the second round does not change the ratio.
    assert result([1.0, 2.0, 1.0], [2.0, 4.0, 2.0]).ratio("eager") == 0.5


@pytest.mark.parametrize(
    ("mine", "verdict"),
    [([0.9, 0.8, 1.2, 0.7], "pass"), ([1.2, 1.3, 1.1, 1.2], "miss"), ([0.9, 0.8, 1.2, 1.3], "tie")],
)
def test_verdicts(mine, verdict):
    measured = result(mine, [1.0] * 4)
    assert measured.verdict(*measured.limits) == verdict
