"""Tests of minidynamo/core/stats.py."""

import pytest
import torch

import minidynamo
from minidynamo.core.stats import Stats


def test_calls_are_counted_by_who_counts_them():
    stats = Stats()
    first, second = stats.counter(of_calls=True), stats.counter(of_calls=False)
    assert all(None in counter.ticks for counter in (first, first, second))
    assert (first.count(), second.count()) == (2, 1)
    stats.misses = 1
    assert (stats.calls, stats.frames, stats.hits) == (2, 3, 2)
    assert str(stats) == "2 calls, 3 frames, 2 hits, 1 miss, 0 recompiles"
    stats.reset()
    assert (stats.calls, stats.frames, stats.misses) == (0, 0, 0)
    assert None in first.ticks and (stats.calls, stats.frames) == (1, 1)
    assert str(stats) == "1 call, 1 hit, 0 misses, 0 recompiles"
    stats.reset()
    assert (stats.calls, stats.frames) == (0, 0)


def test_a_counter_ends_before_each_frame_whose_guards_are_timed():
    counter = Stats().counter(of_calls=True)
    timed = []
    for number in range(1, 3000):
        if None not in counter.ticks:
            timed.append(number)
            counter.renew()
        assert counter.count() == number
    assert timed == [16, 1040, 2064]


def test_a_frame_that_finds_a_renewed_counter_is_counted_once():
    counter = Stats().counter(of_calls=True)
    ended = counter.ticks
    while None in ended:
        pass
    for _ in range(3):  # three threads have found the end
        assert None not in ended
        counter.renew()
    assert counter.count() == 18 and None in counter.ticks and counter.count() == 19


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


def test_a_call_counts_once_and_the_frames_behind_its_breaks_beside_it():
    def below(x):
        minidynamo.graph_break()
        return x * 2

    @minidynamo.compile(backend="eager")
    def f(x):
        return below(x + 1)

    for _ in range(5):
        f(torch.ones(2))
    frames = 4 * 5  # f and below, each before and after its break
    assert (f.stats.calls, f.stats.frames, f.stats.hits, f.stats.misses) == (5, frames, frames - 4, 4)


def test_what_runs_as_written_is_not_counted():
    f = minidynamo.compile(lambda x: x + 1, backend="eager")
    with minidynamo.set_stance("force_eager"):
        f(torch.ones(2))
    assert f.stats.calls == 0


def test_what_python_shows_begins_with_the_calls():
    stats = Stats(misses=1)
    counter = stats.counter(of_calls=True)
    assert None in counter.ticks and None in counter.ticks
    shown = repr(stats)
    assert shown.startswith("Stats(calls=2, frames=2, hits=1, misses=1, compiles=0,") and "_of_calls" not in shown


def test_a_changed_len_is_noticed_and_forgotten(monkeypatch):
    real = len
    f = minidynamo.compile(lambda x, xs: x * len(xs), backend="eager")
    assert f(torch.ones(1), [1, 2]).item() == 2
    changed = lambda xs: 5 if type(xs) in (list, str) and xs == [1, 2] else real(xs)  # noqa: E731
    monkeypatch.setattr("builtins.len", changed)
    assert f(torch.ones(1), [1, 2]).item() == 5
    minidynamo.reset(f)
    assert f.stats.calls == 0 and f(torch.ones(1), [1, 2]).item() == 5
    monkeypatch.undo()
    assert f(torch.ones(1), [1, 2]).item() == 2
