"""Owns the events that minidynamo publishes while it works, and the time spent in each phase of a compile.

Shows nothing; logs, progress lines and statistics subscribe.
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
from dataclasses import field
from typing import Any

import torch

from minidynamo.core.locks import ForkSafeLock
from minidynamo.core.records import record
from minidynamo.errors import ArgumentError, Diagnostic, UserLocation, summary


@record(frozen=True)
class Event:
    """An event."""

    #: a key of KINDS
    kind: str
    #: the frame, phase or file that the event concerns
    name: str
    #: details by name
    data: dict[str, Any] = field(default_factory=dict)


KINDS = {
    "compile_start": "a frame is about to be captured; name: the frame",
    "compile_end": "a frame became an entry, or will always run eagerly",
    "phase_start": "a phase of a compile begins; name: capture, autograd, codegen, cc, ...",
    "phase_end": "a phase ended; data: seconds, without the phases inside it",
    "graph_break": "capture stopped; data: diagnostic",
    "entry": "a frame got one more compiled version; data: entry",
    "recompile": "no entry fitted; data: failures (the failed guards of each), diagnostic",
    "fallback": "code meant to be compiled runs eagerly, permanently or (MD523) this time; data: diagnostic",
    "artifact": "a text was written; name: its kind, data: path, text",
    "cache": "a stored graph was looked for or written; name: hit, miss, store or skip; data: key, reason",
    "notice": "a diagnostic that is shown once; data: diagnostic",
}

_subscribers: list[Callable[[Event], None]] = []
_lock = ForkSafeLock()


def on_event(callback: Callable[[Event], None]) -> Callable[[], None]:
    """Calls `callback(event)` for every event from now on; returns a function that unsubscribes.

    A callback that raises is unsubscribed, with a notice. Raises ArgumentError for an object that is not callable.
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
    """Passes an event to every subscriber. A subscriber that raises is removed: observation never makes a compile
    fail.
    """
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
        f"{who}, subscribed with on_event, raised {summary(error)}",
        why="It is not called any more.",
        fix="Correct it, and pass it to on_event again.",
        where=UserLocation(last.filename, last.lineno or 0, last.name),
    )


# Per open phase, innermost last: the seconds spent in its finished inner phases.
_open_phases: contextvars.ContextVar[tuple[list[float], ...]] = contextvars.ContextVar("open_phases", default=())


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Times a phase of a compile. The time of inner phases is excluded."""
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
    """The warning category of all notices of minidynamo."""


_noticed: set[tuple[str, str]] = set()


def notice(diagnostic: Diagnostic, *, noticed: set[tuple[str, str]] = _noticed) -> None:
    """Warns once per code and headline; equal later notices are only published.

    `noticed` holds the shown notices; a separate set makes notices independent of all others.
    """
    publish("notice", diagnostic.code, diagnostic=diagnostic)
    key = (diagnostic.code, diagnostic.what)
    with _lock:
        if key in noticed:
            return
        noticed.add(key)
    warnings.warn(diagnostic.render(), MinidynamoNotice, stacklevel=_level_of_the_user())


_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
_TORCH = os.path.dirname(torch.__file__) + os.sep
_GENERATED = re.compile(r"\d{4,}_[a-z]+_\w+\.py|<minidynamo \w+>")  # the file names of artifacts.py


def _level_of_the_user() -> int:
    """Returns the `stacklevel` for `warnings.warn` in the calling function: the innermost frame of the user's code, or
    of torch if the thread runs none.
    """
    frame = inspect.currentframe()
    level = level_of_torch = 0
    while frame is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith(_PACKAGE) and not _GENERATED.fullmatch(os.path.basename(filename)):
            if not filename.startswith(_TORCH):
                return level
            level_of_torch = level_of_torch or level
        level += not ("importlib" in filename and "_bootstrap" in filename)  # `warnings` does not count such frames
        frame = frame.f_back
    return level_of_torch or 1


def forget_notices() -> None:
    """Lets every notice be shown again (used by `minidynamo.reset`)."""
    with _lock:
        _noticed.clear()
