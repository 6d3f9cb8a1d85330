"""Owns the isolation of a compile: signals and the garbage collector wait, denormals are kept, torch's thread state is
restored, and the stack is deep enough.

torch opens and closes modes for each traced operation. A signal handler that raises meanwhile may end the process, or
leave a mode open for all later operations of the program. So may an error of torch.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from minidynamo import compat
from minidynamo.core.artifacts import is_own_file, own_frames_hidden
from minidynamo.core.garbage import collections_delayed

STACK_FRAMES = 500
"""The calls on the stack that a compile may need, on top of the program's own."""

_DELAYED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Isolates a compile: only the result and the error are visible afterwards."""
    with (
        _signals_delayed(),
        collections_delayed(),
        compat.keeping_thread_state(),
        compat.with_denormals(),
        compat.uncaptured(),
    ):
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


_MOST_FRAMES = 3000
"""The highest recursion limit that `with_room` raises. Above it the program has room of its own, and each call inside
of `with_room` uses the C stack."""


def is_stack_deep() -> bool:
    """Returns whether more than a quarter of the stack is in use."""
    try:
        sys._getframe(sys.getrecursionlimit() // 4)
    except ValueError:
        return False
    return True


def with_room(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls `function` with a recursion limit for which minidynamo's frames do not count: a
    recursion that works in eager works compiled, and an endless one ends."""

    def call(*args: Any, **kwargs: Any) -> Any:
        limit = sys.getrecursionlimit()
        if limit > _MOST_FRAMES:
            return function(*args, **kwargs)
        raised = limit + _own_frames_since(call.__code__)
        sys.setrecursionlimit(raised)
        _raised.append(raised)
        try:
            return function(*args, **kwargs)
        except own_frames_hidden():
            raise
        finally:
            _lower(limit, raised)

    return call


_raised: list[int] = []
"""The limits of calls of `with_room` that have not ended, of all threads."""


def _lower(limit: int, raised: int) -> None:
    """Ends a call of `with_room`, unless the program has set a limit of its own."""
    if sys.getrecursionlimit() in _raised:
        try:
            sys.setrecursionlimit(limit)
        except RecursionError:  # the stack is full; an outer call lowers the limit
            return
    if raised in _raised:
        del _raised[_raised.index(raised) :]


def _own_frames_since(code: types.CodeType) -> int:
    """Counts minidynamo's frames on the stack, from the caller to the last but one call of `code`."""
    frame: types.FrameType | None = sys._getframe(2)
    count = 1
    while frame is not None and frame.f_code is not code:
        count += is_own_file(frame.f_code.co_filename)
        frame = frame.f_back
    return count


@contextlib.contextmanager
def _signals_delayed() -> Iterator[None]:
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
        for name in _DELAYED:
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
