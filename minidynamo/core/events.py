"""Owns the events that minidynamo publishes while it works, and the time spent in each phase of a compile.

It shows nothing itself; logs, progress lines and statistics subscribe.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import os
import re
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from minidynamo.core.locks import ForkSafeLock
from minidynamo.errors import ArgumentError, Diagnostic, UserLocation, summary


@dataclass(frozen=True)
class Event:
    """Something that happened. `kind` is one of KINDS, `name` what it happened to, `data` the details by name."""

    kind: str
    name: str
    data: dict[str, Any] = field(default_factory=dict)


KINDS = {
    "compile_start": "a frame is about to be captured; name: the frame",
    "compile_end": "a frame became an entry or was given up",
    "phase_start": "a phase of a compile begins; name: capture, autograd, codegen, cc, ...",
    "phase_end": "a phase ended; data: seconds, without the phases inside it",
    "graph_break": "capture stopped; data: diagnostic",
    "entry": "a frame got one more compiled version; data: entry",
    "recompile": "no entry fitted; data: failures (the failed guards of each), diagnostic",
    "fallback": "something runs eagerly that was meant to be compiled, for good or (MD523) this time; data: diagnostic",
    "artifact": "a text was written; name: its kind, data: path, text",
    "cache": "a stored graph was looked for or written; name: hit, miss, store or skip; data: key, reason",
    "notice": "a diagnostic that is shown once; data: diagnostic",
}

_subscribers: list[Callable[[Event], None]] = []
_lock = ForkSafeLock()


def on_event(callback: Callable[[Event], None]) -> Callable[[], None]:
    """Call `callback(event)` for every event from now on; returns a function that ends it.

    What it raises ends that, with a notice. Raises ArgumentError for what cannot be called.
    """
    if not callable(callback):
        what = f"minidynamo.on_event got {type(callback).__name__}, not a callable"
        raise ArgumentError(Diagnostic("MD112", what, fix="Pass a function of one event."))
    with _lock:
        _subscribers.append(callback)

    def unsubscribe() -> None:
        with _lock:
            if callback in _subscribers:
                _subscribers.remove(callback)

    return unsubscribe


def publish(kind: str, name: str, **data: Any) -> None:
    """Tell every subscriber. One that raises is not told again: no compile fails because somebody watches it."""
    for callback in tuple(_subscribers):
        try:
            callback(Event(kind, name, data))
        except Exception as error:
            with _lock:
                _subscribers[:] = [other for other in _subscribers if other is not callback]
            notice(_failed(callback, error))


def _failed(callback: object, error: Exception) -> Diagnostic:
    who = getattr(callback, "__qualname__", type(callback).__name__)
    last = traceback.extract_tb(error.__traceback__)[-1]
    return Diagnostic(
        "MD113",
        f"{who}, which was given to on_event, raised {summary(error)}",
        why="It is not called any more.",
        fix="Repair it, and give it to on_event again.",
        where=UserLocation(last.filename, last.lineno or 0, last.name),
    )


# Seconds spent in finished inner phases of each open phase, innermost last.
_open_phases: contextvars.ContextVar[tuple[list[float], ...]] = contextvars.ContextVar("open_phases", default=())


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Time a phase of a compile. The time of phases inside it is not counted twice."""
    inner = [0.0]
    outer = _open_phases.get()
    token = _open_phases.set((*outer, inner))
    publish("phase_start", name)
    start = time.perf_counter()
    try:
        yield
    finally:
        elapsed = time.perf_counter() - start
        _open_phases.reset(token)
        if outer:
            outer[-1][0] += elapsed
        publish("phase_end", name, seconds=elapsed - inner[0])


class MinidynamoNotice(UserWarning):
    """The warning category of every notice that minidynamo gives."""


_noticed: set[tuple[str, str]] = set()


def notice(diagnostic: Diagnostic, *, noticed: set[tuple[str, str]] = _noticed) -> None:
    """Warn once per code and headline; later equal ones are only published.

    `noticed` remembers them; with a set of its own, a thing has a warning of its own.
    """
    publish("notice", diagnostic.code, diagnostic=diagnostic)
    key = (diagnostic.code, diagnostic.what)
    with _lock:
        if key in noticed:
            return
        noticed.add(key)
    warnings.warn(diagnostic.render(), MinidynamoNotice, stacklevel=_level_of_the_user())


_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_GENERATED = re.compile(r"\d{4,}_[a-z]+_\w+\.py|<minidynamo \w+>")  # as artifacts.py names files


def _level_of_the_user() -> int:
    """For `warnings.warn` in the calling function: the innermost frame that is neither ours nor generated."""
    frame = inspect.currentframe()
    level = 0
    while frame is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith(_PACKAGE) and not _GENERATED.fullmatch(os.path.basename(filename)):
            return level
        level += not ("importlib" in filename and "_bootstrap" in filename)  # which `warnings` does not count
        frame = frame.f_back
    return 1


def forget_notices() -> None:
    """Let every notice be shown again (used by `minidynamo.reset`)."""
    with _lock:
        _noticed.clear()
