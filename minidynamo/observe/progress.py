"""Owns the progress line: the current phase of a compile that takes over two seconds, on a terminal.

It only subscribes to events. It draws nothing in pipes and files, nor for shorter compiles.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from minidynamo.config import config
from minidynamo.core.events import Event, on_event

DELAY_SECONDS = 2.0
REFRESH_SECONDS = 0.25


class _Compile:
    """A running compile in one thread: the frame and its open phases, innermost last."""

    def __init__(self, frame: str) -> None:
        self.frame = frame
        self.phases: list[str] = []
        self.start = time.perf_counter()

    def line(self) -> str:
        phase = self.phases[-1] if self.phases else "capture"
        return f"minidynamo: compiling {self.frame}: {phase} ({time.perf_counter() - self.start:.0f} s)"


class ProgressLine:
    """An event subscriber. One thread watches while a compile runs, and ends with the last compile."""

    def __init__(self, open_display: Callable[[], Any], delay: float = DELAY_SECONDS) -> None:
        self._open_display = open_display
        self._delay = delay
        self._lock = threading.Lock()
        self._compiles: dict[int, list[_Compile]] = {}
        self._idle = threading.Event()
        self._watcher: threading.Thread | None = None

    def __call__(self, event: Event) -> None:
        stack = self._compiles.get(threading.get_ident())
        if event.kind == "compile_start":
            self._begin(event.name)
        elif event.kind == "compile_end" and stack:
            self._end(stack)
        elif event.kind == "phase_start" and stack:
            stack[-1].phases.append(event.name)
        elif event.kind == "phase_end" and stack and stack[-1].phases:
            stack[-1].phases.pop()

    def _begin(self, frame: str) -> None:
        with self._lock:
            self._compiles.setdefault(threading.get_ident(), []).append(_Compile(frame))
            if self._watcher is None and is_wanted():
                self._idle.clear()
                self._watcher = threading.Thread(target=self._watch, name="minidynamo progress", daemon=True)
                self._watcher.start()

    def _end(self, stack: list[_Compile]) -> None:
        with self._lock:
            stack.pop()
            if not stack:
                del self._compiles[threading.get_ident()]
            if self._compiles or self._watcher is None:
                return
            self._idle.set()
            # Remove the line before the user's program prints again.
            self._watcher.join()
            self._watcher = None

    def _watch(self) -> None:
        if self._idle.wait(self._delay):
            return
        with self._open_display() as display:
            while not self._idle.wait(REFRESH_SECONDS):
                display.update(self._line())

    def _line(self) -> str:
        # The compiling threads change the stacks meanwhile: read a copy.
        stacks = [stack for stack in tuple(self._compiles.values()) if stack]
        more = f", and {len(stacks) - 1} more" if len(stacks) > 1 else ""
        return stacks[0][-1].line() + more if stacks else ""


def is_wanted() -> bool:
    """Returns whether to draw: `config.progress` is 1, or auto and standard error is a terminal."""
    return config.progress == "1" or (config.progress == "auto" and sys.stderr.isatty())


def open_status() -> Any:
    """Returns a line with a spinner on standard error that disappears when closed."""
    # Imported here: only slow compiles need rich.
    from rich.console import Console  # noqa: PLC0415

    return Console(stderr=True, force_terminal=True if config.progress == "1" else None).status(
        "", refresh_per_second=4
    )


def install() -> Callable[[], None]:
    """Shows the line for every compile from now on; returns a function that stops this."""
    return on_event(ProgressLine(open_status))
