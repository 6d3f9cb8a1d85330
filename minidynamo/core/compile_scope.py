"""Owns the isolation of a compile: signals wait, denormals are kept, torch's thread state is restored, and the stack
is deep enough.

torch opens and closes modes for each traced operation. A signal handler that raises meanwhile may end the process, or
leave a mode open for all later operations of the program. So may an error of torch.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from minidynamo import compat

STACK_FRAMES = 500
"""The calls on the stack that a compile may need, on top of the program's own."""

_WAITING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Isolates a compile: only the result and the error are visible afterwards."""
    with _signals_waiting(), compat.keeping_thread_state(), compat.with_denormals(), compat.backward_compiler(None):
        yield


@contextlib.contextmanager
def deeper_stack() -> Iterator[None]:
    """Raises the recursion limit: a program that calls near the limit must not fail because of the compiler's calls."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + STACK_FRAMES)
    try:
        yield
    finally:
        if sys.getrecursionlimit() == limit + STACK_FRAMES:
            sys.setrecursionlimit(limit)


@contextlib.contextmanager
def _signals_waiting() -> Iterator[None]:
    """Delays Python signal handlers until after the block; the second signal of a kind runs its handler at once."""
    # Python handlers never run outside of the main thread
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: dict[int, Callable[..., Any]] = {}
    received: list[int] = []

    def wait(number: int, frame: Any) -> None:
        if number in received:
            handlers[number](number, frame)
        else:
            received.append(number)

    try:
        for name in _WAITING:
            number = getattr(signal, name, None)
            handler = None if number is None else signal.getsignal(number)
            if number is not None and callable(handler):
                handlers[number] = handler
                signal.signal(number, wait)
        yield
    finally:
        for number, handler in handlers.items():
            if signal.getsignal(number) is wait:
                signal.signal(number, handler)
        with contextlib.ExitStack() as stack:  # if a handler raises, the remaining handlers still run
            for number in reversed(received):
                stack.callback(signal.raise_signal, number)
