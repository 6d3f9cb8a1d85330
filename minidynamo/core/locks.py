"""Owns the locks of minidynamo, which survive a fork: a child process never waits for a thread that it does not have.

It does not say what is locked. After a fork the child has one thread, the one that forked; a lock that any other thread
held is free there, and whoever depends on what it protected is told.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


class ForkSafeLock:
    """A reentrant lock. `repair()` runs in a child process whose parent's other threads were in the middle of it."""

    def __init__(self, repair: Callable[[], None] = lambda: None) -> None:
        self._lock = threading.RLock()
        self._repair = repair
        _locks.add(self)

    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock. False when another thread has it and this one does not wait."""
        return self._lock.acquire(blocking)

    def release(self) -> None:
        """Give the lock back."""
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def after_fork(self) -> None:
        """Make the lock usable in a child process; a thread that forked while it had the lock keeps it."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
            return
        self._lock = threading.RLock()
        self._repair()


def _after_fork() -> None:
    for lock in tuple(_locks):
        lock.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
