"""Owns what holds while something is compiled: signals wait, numbers are what they are, torch's state is put back.

Torch opens and leaves modes of its own at each operation that it traces. A handler that raises in the midst of that may
end the process, or leave a mode open that all operations of the program would go through from then on. So may an error
of torch's own.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from minidynamo import compat

_WAITING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Around a compile, of which nothing but its result and its error may be seen behind it."""
    with _signals_waiting(), compat.keeping_thread_state(), compat.with_denormals():
        yield


@contextlib.contextmanager
def _signals_waiting() -> Iterator[None]:
    """Handlers written in Python run behind the block; that of a signal which comes again runs at once."""
    if threading.current_thread() is not threading.main_thread():  # where they never run
        yield
        return
    handlers: dict[int, Callable[..., Any]] = {}
    came: list[int] = []

    def wait(number: int, frame: Any) -> None:
        if number in came:
            handlers[number](number, frame)
        else:
            came.append(number)

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
        with contextlib.ExitStack() as stack:  # the others run, too, where one raises
            for number in reversed(came):
                stack.callback(signal.raise_signal, number)
