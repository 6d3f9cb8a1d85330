"""Owns the locks of minidynamo, which survive a fork: a child process never waits for a thread of the parent.

Does not define the protected state. After a fork the child has one thread, the forking thread. A lock held by any other
thread of the parent is free in the child, and `repair` runs.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


class ForkSafeLock:
    """A reentrant lock. `repair()` runs in a forked child process if another thread of the parent held the lock."""

    def __init__(self, repair: Callable[[], None] = lambda: None) -> None:
        self._lock = threading.RLock()
        self._repair = repair
        _locks.add(self)

    def acquire(self, blocking: bool = True) -> bool:
        """Acquires the lock. Returns False if another thread holds it and `blocking` is False."""
        return self._lock.acquire(blocking)

    def release(self) -> None:
        """Releases the lock."""
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def after_fork(self) -> None:
        """Makes the lock usable in a child process; a thread that forked while holding the lock keeps it."""
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
