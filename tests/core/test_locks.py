"""Locks in forked processes: free if held by a different thread, kept by the thread that forked."""

import os
import threading

import pytest

from minidynamo.core.locks import ForkSafeLock


def in_child(check) -> bool:
    """True if `check()` is true in a forked process."""
    child = os.fork()
    if child == 0:
        os._exit(0 if check() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def held_elsewhere():
    repaired = []
    lock = ForkSafeLock(lambda: repaired.append(True))
    taken, done = threading.Event(), threading.Event()

    def hold():
        with lock:
            taken.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(60)
    yield lock, repaired
    done.set()
    thread.join()
    assert lock.acquire(blocking=False)


def test_it_is_a_reentrant_lock():
    lock = ForkSafeLock()
    with lock, lock:
        assert lock.acquire(blocking=False)
        lock.release()


def test_another_thread_waits_or_not(held_elsewhere):
    lock, _ = held_elsewhere
    assert not lock.acquire(blocking=False)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_gets_what_another_thread_held(held_elsewhere):
    lock, repaired = held_elsewhere
    assert in_child(lambda: lock.acquire(blocking=False) and repaired == [True])
    assert repaired == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_keeps_what_its_own_thread_held():
    repaired = []
    lock = ForkSafeLock(lambda: repaired.append(True))
    with lock:

        def released():
            lock.release()
            return lock.acquire(blocking=False) and repaired == []

        assert in_child(released)
