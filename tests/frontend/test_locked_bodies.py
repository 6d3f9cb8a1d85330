"""Tests of minidynamo/frontend/locked_bodies.py: the lock is held while the graph runs, and the guards hold then."""

import re
import sys
import threading
import time

import pytest
import torch

import minidynamo
from minidynamo.core.events import MinidynamoNotice
from minidynamo.graph.boxed import mark_boxed
from minidynamo.testing import CompileCounter

LOCK = threading.Lock()


def plain(x):
    with LOCK:
        y = x * 2
    return y + 1


class Watching:
    """A backend whose graphs record whether the locks are held."""

    def __init__(self, *locks):
        self.locks, self.seen = locks, []

    def __call__(self, graph, inputs):
        def run(*args):
            self.seen.append([lock.locked() for lock in self.locks])
            return graph(*args)

        return minidynamo.make_boxed_func(run)


def in_thread_waiting_for_the_lock(call):
    """Starts `call` in a thread; returns when the guards have passed, and the thread waits for the lock."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    for _ in range(3000):
        frame = sys._current_frames().get(thread.ident)
        if frame is not None and re.search(r"\d_locked_", frame.f_code.co_filename):
            return thread, results
        time.sleep(0.01)
    raise AssertionError("the thread does not wait for the lock")


def test_the_lock_is_held_while_the_graph_runs():
    backend = Watching(LOCK)
    compiled = minidynamo.compile(plain, backend=backend)
    for _ in range(3):
        compiled(torch.ones(3))
        assert not LOCK.locked()
    assert backend.seen == [[True]] * 3


def test_a_frame_without_a_graph_takes_the_lock():
    def fn(values):
        with LOCK:
            return values[0]

    compiled = minidynamo.compile(fn, backend="eager")
    assert compiled([1]) == compiled([1]) == 1
    with LOCK:
        thread, results = in_thread_waiting_for_the_lock(lambda: compiled([1]))
        assert not results
    thread.join(60)
    assert results == [1]


def test_the_values_under_the_lock_count():
    state = {"scale": 2, "shift": torch.zeros(3)}

    @minidynamo.compile(backend=(counter := CompileCounter()), dynamic=False)
    def fn(x):
        before = state["scale"]
        with LOCK:
            return before, x * state["scale"] + state["shift"]

    fn(torch.ones(3))
    with LOCK:
        thread, results = in_thread_waiting_for_the_lock(lambda: fn(torch.ones(3)))
        state.update(scale=5, shift=torch.ones(3))
    thread.join(60)
    ((before, result),) = results
    assert before == 5 and torch.equal(result, torch.full((3,), 6.0))
    assert counter.frame_count == 1  # this call ran eagerly
    assert not LOCK.locked()


def test_a_resumed_frame_checks_its_guards_under_the_lock():
    state = {"scale": 2}

    @minidynamo.compile(backend="eager", dynamic=False)
    def fn(x):
        y = x + 1
        minidynamo.graph_break()
        with LOCK:
            return y * state["scale"]

    fn(torch.ones(3))
    with LOCK:
        thread, results = in_thread_waiting_for_the_lock(lambda: fn(torch.ones(3)))
        state["scale"] = 5
    thread.join(60)
    assert torch.equal(results[0], torch.full((3,), 10.0))
    assert not LOCK.locked()


def test_each_of_equal_closures_takes_its_own_lock():
    def make():
        lock = threading.Lock()

        def fn(x):
            with lock:
                y = x * 2
            return y + 1

        return fn, lock

    (f, first), (g, second) = make(), make()
    backend = Watching(first, second)
    f, g = minidynamo.compile(f, backend=backend), minidynamo.compile(g, backend=backend)
    for fn in (f, f, g, g):
        fn(torch.ones(3))
    assert backend.seen == [[True, False]] * 2 + [[False, True]] * 2
    assert g.stats.shared == 1


def test_a_frozen_function_takes_the_lock():
    backend = Watching(LOCK)
    compiled = minidynamo.compile(plain, backend=backend)
    compiled(torch.ones(3))
    frozen = minidynamo.freeze(compiled)
    assert torch.equal(frozen(torch.ones(3)), torch.full((3,), 3.0))
    assert backend.seen == [[True]] * 2


@pytest.mark.provokes_failures
@pytest.mark.parametrize("lock_type", [threading.Lock, threading.RLock])
def test_the_lock_is_released_before_the_frame_runs_again(lock_type):
    lock, calls = lock_type(), []

    def failing(graph, inputs):
        def run(*args):
            calls.append(lock.acquire(blocking=False))
            if calls[-1]:
                lock.release()
            raise RuntimeError("the backend fails")

        return minidynamo.make_boxed_func(run)

    def fn(x, log):
        log.append("before")
        with lock:
            y = x * 2
        return y + 1

    log = []
    compiled = minidynamo.compile(fn, backend=failing)
    for _ in range(2):
        with pytest.warns(MinidynamoNotice, match="MD523"):
            assert torch.equal(compiled(torch.ones(3), log), torch.full((3,), 3.0))
    assert log == ["before"] * 2
    assert calls == [lock_type is threading.RLock] * 2
    assert free(lock)


def free(lock):
    """Returns whether another thread can take a lock."""
    taken = []
    thread = threading.Thread(target=lambda: taken.append(lock.acquire(blocking=False) and lock.release() is None))
    thread.start()
    thread.join(60)
    return taken == [True]


@pytest.mark.parametrize("lock_type", [threading.Lock, threading.RLock])
@pytest.mark.parametrize("has_effect", [False, True])
def test_the_lock_is_released_after_an_error_of_the_program(lock_type, has_effect):
    lock, log = lock_type(), []

    @minidynamo.compile(backend="eager")
    def fn(x, index):
        with lock:
            y = x * 2
            if has_effect:
                log.append(1)
            y = y[index]
        return y + 1

    fn(torch.ones(3), torch.tensor(2))
    with pytest.raises(IndexError):
        fn(torch.ones(3), torch.tensor(7))
    assert free(lock)
    assert torch.equal(fn(torch.ones(3), torch.tensor(2)), torch.tensor(3.0))
    assert log == [1] * 3 * has_effect


def test_an_error_shows_only_the_lines_of_the_program():
    @minidynamo.compile(backend="eager")
    def fn(x, index):
        with LOCK:
            return x[index]

    fn(torch.ones(3), torch.tensor(2))
    with pytest.raises(IndexError) as caught:
        fn(torch.ones(3), torch.tensor(7))
    assert {str(entry.path) for entry in caught.traceback} == {__file__}


def test_an_argument_dies_before_the_frame_ends():
    """The body holds no reference to the arguments while the residual program runs."""
    seen = []

    def backend(graph, inputs):
        def run(args):
            x = args.pop()
            seen.append(sys.getrefcount(x))
            return graph(x)

        return mark_boxed(run)

    def fn(x):
        with LOCK:
            x = x * 2
        return x + 1

    def bare(x):
        x = x * 2
        return x + 1

    for each in (bare, fn):
        compiled = minidynamo.compile(each, backend=backend)
        compiled(torch.ones(3))
        compiled(torch.ones(3))
    assert seen[1] == seen[3]
