"""Compiled functions called by many threads at once: results equal eager's, and no thread waits without need."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import minidynamo
from minidynamo.config import config
from minidynamo.errors import UnknownName
from minidynamo.graph.boxed import make_boxed

THREADS = 8
CALLS = 2000
CALLS_UNDER_LOCK = 100


def scaled(x, y):
    return (x * y + 1).sin()


def normalized(x, y):
    return torch.softmax(x - y, -1) * y.sum()


def branches(x, y):
    if x.shape[0] > 3:
        return x - y
    return (x + y).relu()


def breaks(x, y):
    z = x * 2
    if z.sum() > 0:
        return z + y
    return z - y


FUNCTIONS = [scaled, normalized, branches, breaks]
SHAPES = [(2, 4), (3, 4), (4, 4), (5, 2)]


def run(work):
    """Calls `work(number)` in THREADS threads that start together, and raises the errors of the threads."""
    start = threading.Barrier(THREADS)

    def begin(number):
        start.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, range(THREADS)))


@pytest.mark.parametrize("while_compiling", ["wait", "eager"])
@pytest.mark.parametrize("backend", ["eager", pytest.param("cpp", marks=pytest.mark.cpp)])
def test_eight_threads_four_functions_changing_shapes(backend, while_compiling):
    compiled = [minidynamo.compile(f, backend=backend, while_compiling=while_compiling) for f in FUNCTIONS]
    inputs = {shape: torch.randn(2, *shape) for shape in SHAPES}
    expected = {(f, shape): f(*xy) for f in FUNCTIONS for shape, xy in inputs.items()}

    def work(number):
        generator = torch.Generator().manual_seed(number)
        for _ in range(CALLS // THREADS):
            which, shape = torch.randint(4, (2,), generator=generator).tolist()
            with torch.no_grad():
                result = compiled[which](*inputs[SHAPES[shape]])
            torch.testing.assert_close(result, expected[FUNCTIONS[which], SHAPES[shape]], rtol=1e-6, atol=1e-6)
        return CALLS // THREADS

    assert sum(run(work)) == CALLS
    for function in compiled:
        assert function.stats.compiles <= 2 * len(SHAPES)


@pytest.mark.cpp
def test_gradients_in_eight_threads():
    compiled = minidynamo.compile(normalized, backend="cpp")
    x, y = torch.randn(2, 3, 4)

    def gradient(function):
        leaf = x.clone().requires_grad_()
        function(leaf, y).pow(2).sum().backward()
        return leaf.grad

    expected = gradient(normalized)
    for found in run(lambda _: [gradient(compiled) for _ in range(5)]):
        for one in found:
            torch.testing.assert_close(one, expected)
    assert compiled.stats.compiles == 1


class SlowBackend:
    """A backend that waits in the middle of a compile until the test sets `go_on`."""

    def __init__(self):
        self.compiling, self.go_on, self.compiles = threading.Event(), threading.Event(), 0

    def __call__(self, gm, example_inputs):
        self.compiles += 1
        self.compiling.set()
        assert self.go_on.wait(60)
        return make_boxed(gm)


@pytest.fixture
def slow():
    backend = SlowBackend()
    yield backend
    backend.go_on.set()


def in_thread(function, *args):
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*args)))
    thread.start()
    return thread, results


def test_others_wait_for_the_one_compile(slow):
    f = minidynamo.compile(scaled, backend=slow)
    x, y = torch.randn(2, 3)
    started = [in_thread(f, x, y) for _ in range(4)]
    assert slow.compiling.wait(60)
    time.sleep(0.05)
    assert all(not results for _, results in started)
    slow.go_on.set()
    for thread, results in started:
        thread.join(60)
        assert torch.equal(results[0], scaled(x, y))
    assert slow.compiles == 1


def test_others_run_eagerly_if_they_are_not_to_wait(slow):
    f = minidynamo.compile(scaled, backend=slow, while_compiling="eager")
    x, y = torch.randn(2, 3)
    first, results = in_thread(f, x, y)
    assert slow.compiling.wait(60)
    assert torch.equal(f(x, y), scaled(x, y))
    assert not results and f.stats.native_runs == 1
    slow.go_on.set()
    first.join(60)
    assert torch.equal(results[0], scaled(x, y))
    f(x, y)
    assert slow.compiles == 1


def test_calls_of_what_is_compiled_wait_for_nobody(slow):
    other = minidynamo.compile(normalized, backend="eager")
    x, y = torch.randn(2, 3, 4)
    other(x, y)
    first, _ = in_thread(minidynamo.compile(scaled, backend=slow), x, y)
    assert slow.compiling.wait(60)
    assert torch.equal(other(x, y), normalized(x, y))
    slow.go_on.set()
    first.join(60)


def test_an_error_of_one_compile_leaves_the_others_alone():
    def failing(gm, example_inputs):
        raise RuntimeError("no")

    f = minidynamo.compile(scaled, backend=failing)
    g = minidynamo.compile(scaled, backend="eager", name="g")
    x, y = torch.randn(2, 3)

    def work(number):
        if number % 2:
            with pytest.raises(minidynamo.errors.BackendError):
                f(x, y)
        else:
            assert torch.equal(g(x, y), scaled(x, y))

    run(work)


def test_threads_share_the_settings():
    f = minidynamo.compile(scaled, backend="eager")
    x, y = torch.randn(2, 3)
    with config.patch(disable=True):
        thread, results = in_thread(f, x, y)
        thread.join(60)
    assert len(results) == 1 and f.stats.compiles == 0


def test_the_choices_are_checked():
    with pytest.raises(UnknownName, match="while_compiling"):
        minidynamo.compile(scaled, while_compiling="wiat")


@pytest.mark.parametrize("lock", [threading.Lock(), threading.RLock()], ids=["Lock", "RLock"])
def test_reads_inside_of_a_lock_see_the_writes_of_other_threads(lock):
    total = {"count": 0, "sum": torch.zeros(2)}

    @minidynamo.compile(backend="eager")
    def add(x):
        y = x * 2
        with lock:
            total["count"] = total["count"] + 1
            total["sum"] = total["sum"] + y
        return y

    def work(number):
        for _ in range(CALLS_UNDER_LOCK):
            add(torch.full((2,), float(number)))

    for _ in range(3):  # the number varies from the second call on
        add(torch.zeros(2))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        run(work)
    finally:
        sys.setswitchinterval(interval)
    assert total["count"] == 3 + THREADS * CALLS_UNDER_LOCK
    assert total["sum"].tolist() == [2 * CALLS_UNDER_LOCK * sum(range(THREADS))] * 2
    assert "no graph breaks" in str(add.breaks())
