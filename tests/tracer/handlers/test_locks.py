"""Tests of minidynamo/tracer/handlers/locks.py: `with lock:` does not end the graph, unless a longer hold of the lock
could be visible."""

import contextlib
import threading

import pytest
import torch

import minidynamo
from minidynamo.errors import Unsupported
from minidynamo.testing import assert_same_as_eager

LOCK, OTHER, RLOCK = threading.Lock(), threading.Lock(), threading.RLock()


class Meter:
    """An object with a lock of its own."""

    def __init__(self):
        self._lock, self.count, self.total, self.seen = threading.Lock(), 0, torch.zeros(3), []

    def add(self, x):
        with self._lock:
            self.count += 1
            self.total = self.total + x
            self.seen.append(x.shape[0])
        return self.total / self.count


def plain(x):
    with LOCK:
        y = x * 2
    return y + 1


def named(x):
    with LOCK as entered:
        y = x * entered
    return y, entered


def in_a_loop(x):
    for k in range(3):
        with LOCK:
            x = x * k
    return x


def nested(x):
    with RLOCK:
        with RLOCK:
            y = x * 2
        return y + 1


def returns_inside(x):
    with LOCK:
        if x.dim() == 1:
            return x * 2
    return x


def handles_an_error(x):
    try:
        with LOCK:
            y = x * 2
            raise ValueError("no")
    except ValueError:
        return y + 1


def in_a_generator(x):
    def parts():
        with LOCK:
            yield x * 2
            yield x * 3

    return sum(parts())


def in_a_stack(x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(LOCK)
        y = x * 2
    return y + 1


def prints_inside(x):
    with LOCK:
        y = x * 2
        print(y.shape)
    return y


def writes_inside(x):
    with LOCK:
        x.add_(1)
    return x * 2


@pytest.mark.parametrize("lock_type", [threading.Lock, threading.RLock])
@pytest.mark.parametrize("backend", ["eager", pytest.param("native", marks=pytest.mark.cpp)])
def test_a_lock_around_operations(lock_type, backend):
    lock = lock_type()

    def fn(x):
        with lock:
            y = x * 2
        return y + 1

    assert_same_as_eager(fn, lambda: torch.ones(3, requires_grad=True), backend=backend, fullgraph=True, calls=3)


@pytest.mark.parametrize(
    "fn",
    [named, in_a_loop, nested, returns_inside, handles_an_error, in_a_generator, in_a_stack, prints_inside],
    ids=lambda fn: fn.__name__,
)
def test_captured(fn):
    assert_same_as_eager(fn, lambda: torch.ones(3), graphs=1, breaks=0, recompiles=0, calls=3)
    assert not LOCK.locked()


def test_a_write_under_a_lock():
    assert_same_as_eager(writes_inside, lambda: torch.ones(3), graphs=1, breaks=0, calls=2)


def test_an_object_with_a_lock():
    def fn(meter, x):
        return meter.add(x), meter.add(x + 1), meter.count, meter.seen

    compiled = minidynamo.compile(fn, backend="eager", fullgraph=True)
    for count in range(4):
        meter, expected = Meter(), Meter()
        meter.count = expected.count = count
        for got, want in zip(compiled(meter, torch.ones(3)), fn(expected, torch.ones(3))):
            assert torch.equal(got, want) if isinstance(got, torch.Tensor) else got == want
        assert not meter._lock.locked()
    assert compiled.stats.compiles == 2  # another lock is no reason to recompile; the number varies


def cut_inside(x):
    with LOCK:
        y = x * 2
        minidynamo.graph_break()
        y = y + 1
    return y * 2


def second_lock_inside(x):
    with LOCK, OTHER:
        y = x * 2
    return y + 1


def prints_afterwards(x):
    with LOCK:
        y = x * 2
    print(y.shape)
    return y + 1


def prints_before(x):
    print(x.shape)
    with LOCK:
        y = x * 2
    return y + 1


def unfinished_generator(x):
    def parts():
        with LOCK:
            yield x * 2
            yield x * 3

    started = parts()
    y = next(started)
    return y + 1, started


def acquires(x):
    LOCK.acquire()
    y = x * 2
    LOCK.release()
    return y


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (cut_inside, "The graph ends while the lock is held: the program asks for it."),
        (second_lock_inside, "The graph ends while the lock is held: lock.__enter__ is used."),
        (prints_afterwards, "such as a print, would be made while the lock is held"),
        (prints_before, "such as a print, would be made while the lock is held"),
        (acquires, "`acquire` of a lock is used"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_left_to_python(fn, reason):
    compiled = assert_same_as_eager(fn, lambda: torch.ones(3), calls=3)
    assert reason in str(compiled.breaks())
    assert not LOCK.locked() and not OTHER.locked()
    with pytest.raises(Unsupported):
        minidynamo.compile(fn, backend="eager", fullgraph=True)(torch.ones(3))
    assert not LOCK.locked()


def test_a_second_lock_ends_the_graph():
    def fn(x):
        with LOCK:
            y = x * 2
        with OTHER:
            y = y + 1
        return y * 2

    compiled = assert_same_as_eager(fn, lambda: torch.ones(3), graphs=3, breaks=2, calls=2)
    assert "A graph holds one lock only" in str(compiled.breaks())


def test_other_threads_do_not_wait_for_many_operations_outside_of_the_block():
    def fn(x):
        with LOCK:
            y = x * 2
        for _ in range(20):
            y = torch.sin(y) + 1
        return y

    def inside(x):
        with LOCK:
            for _ in range(20):
                x = torch.sin(x) + 1
        return x * 2

    compiled = assert_same_as_eager(fn, lambda: torch.ones(3), breaks=2, calls=2)
    assert "Most operations are outside of the block" in str(compiled.breaks())
    assert_same_as_eager(fn, lambda: torch.ones(3), fullgraph=True, calls=2)
    assert_same_as_eager(inside, lambda: torch.ones(3), breaks=0, calls=2)


def test_the_error_of_fullgraph_names_the_code_inside():
    with pytest.raises(Unsupported, match=r"minidynamo\.graph_break"):
        minidynamo.compile(cut_inside, backend="eager", fullgraph=True)(torch.ones(3))


def test_a_generator_that_holds_the_lock_is_left_to_python():
    compiled = minidynamo.compile(unfinished_generator, backend="eager")
    for _ in range(2):
        y, started = compiled(torch.ones(3))
        assert torch.equal(y, torch.full((3,), 3.0)) and LOCK.locked()
        assert torch.equal(next(started), torch.full((3,), 3.0))
        started.close()
        assert not LOCK.locked()


@torch.library.custom_op("minidynamo_tests::needs_the_lock", mutates_args=())
def needs_the_lock(x: torch.Tensor) -> torch.Tensor:
    assert LOCK.acquire(timeout=10)
    LOCK.release()
    return x + 1


needs_the_lock.register_fake(torch.empty_like)


def test_an_operator_of_the_user_may_take_the_lock():
    def fn(x):
        with LOCK:
            y = x * 2
        return needs_the_lock(y)

    assert_same_as_eager(fn, lambda: torch.ones(3), breaks=2, calls=2)


def test_checkpointed_code_takes_its_lock_in_python():
    def inner(x):
        with LOCK:
            y = x.sin()
        return y * 2

    def fn(x):
        return torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)

    assert_same_as_eager(fn, lambda: torch.ones(3, requires_grad=True), calls=2)
    assert not LOCK.locked()
