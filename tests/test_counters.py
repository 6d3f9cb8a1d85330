"""Tests of minidynamo/counters.py."""

import pytest
import torch

import minidynamo
from minidynamo.counters import Stats


def test_calls_are_counted_by_who_counts_them():
    stats = Stats()
    first, second = stats.counter(), stats.counter()
    assert (first(), first(), second()) == (1, 2, 1)
    stats.misses = 1
    assert (stats.calls, stats.hits) == (3, 2)
    assert str(stats) == "3 calls, 2 hits, 1 misses, 0 recompiles"
    stats.reset()
    assert (stats.calls, stats.misses) == (0, 0)
    assert first() == 3 and stats.calls == 1


def test_guard_time_is_a_mean_over_timed_calls():
    stats = Stats()
    assert stats.guard_ns == 0
    stats.add_timed_call(100)
    stats.add_timed_call(300)
    assert (stats.guard_ns, stats.timed_calls) == (200, 2)
    assert "guards 0.2 us" in str(stats)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_compiled_function_counts_its_calls(backend):
    f = minidynamo.compile(lambda x: x + 1, backend=backend)
    x = torch.ones(3)
    for _ in range(20):
        f(x)
    f(x.double())
    stats = f.stats
    assert (stats.calls, stats.hits, stats.misses, stats.recompiles) == (21, 19, 2, 1)
    assert stats.timed_calls == 1 and 0 < stats.guard_ns < 1e9
    f.reset()
    assert (f.stats.calls, f.stats.timed_calls) == (0, 0)


def test_frames_behind_breaks_are_counted_too():
    @minidynamo.compile(backend="eager")
    def f(x):
        x = x + 1
        minidynamo.graph_break()
        return x * 2

    for _ in range(5):
        f(torch.ones(2))
    assert (f.stats.calls, f.stats.hits, f.stats.misses) == (10, 8, 2)


def test_what_runs_as_written_is_not_counted():
    f = minidynamo.compile(lambda x: x + 1, backend="eager")
    with minidynamo.set_stance("force_eager"):
        f(torch.ones(2))
    assert f.stats.calls == 0


def test_what_python_shows_begins_with_the_calls():
    stats = Stats(misses=1)
    count = stats.counter()
    count(), count()
    assert repr(stats).startswith("Stats(calls=2, hits=1, misses=1, compiles=0,") and "_counts" not in repr(stats)


def test_a_changed_len_is_noticed_and_forgotten(monkeypatch):
    real = len
    f = minidynamo.compile(lambda x, xs: x * len(xs), backend="eager")
    assert f(torch.ones(1), [1, 2]).item() == 2
    changed = lambda xs: 5 if type(xs) in (list, str) and xs in ([1, 2], "count(") else real(xs)  # noqa: E731
    monkeypatch.setattr("builtins.len", changed)
    assert f(torch.ones(1), [1, 2]).item() == 5
    minidynamo.reset(f)
    assert f.stats.calls == 0 and f(torch.ones(1), [1, 2]).item() == 5
    monkeypatch.undo()
    assert f(torch.ones(1), [1, 2]).item() == 2
