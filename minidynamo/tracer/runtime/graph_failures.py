"""Owns the classification of an error of a graph: an error of the program, of a signal handler, or of the backend.

A frame whose graph has failed runs again eagerly. An error of the program then occurs again. An error without
repetition is a failure of the backend or of generated code, and is reported. `rollback.py` restores the values of the
frame.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from minidynamo.core import artifacts
from minidynamo.errors import summary
from minidynamo.graph.boxed import BoxedCallable

CHECK_FAILED = "the program raises an error here"
"""The message of a failed runtime assert, which makes the frame run again."""


@dataclass(frozen=True)
class Failure:
    """An error raised by a graph, without the error object: the traceback would keep the values of all frames alive."""

    #: class of the error
    kind: type[BaseException]
    #: one line of text
    text: str
    #: the lines of the program that raised, where known
    lines: tuple[str, ...] = ()

    @property
    def is_check(self) -> bool:
        """True if a runtime assert of the graph failed."""
        return CHECK_FAILED in self.text

    @staticmethod
    def of(error: BaseException) -> Failure:
        """Returns the failure for an error."""
        return Failure(type(error), summary(error), tuple(artifacts.users_lines(error)))


def rerunner(
    run: BoxedCallable, failed: Callable[[Failure], None], *, may_handle: bool
) -> Callable[[list[Any], Failure], Any]:
    """Returns a function that runs a frame again eagerly, by `run`, and passes the graph's failure to `failed` if the
    program raises no error of the same class.

    `may_handle`: the program may handle the error inside the frame, so errors must be watched. A failed runtime assert
    matches an error of any class. A handled error does not prove a match: a polyfill may raise more errors than the
    original.
    """

    @artifacts.passed_over
    def run_again(values: list[Any], failure: Failure) -> Any:
        kinds: list[type[BaseException]] = []
        try:
            with _recording(kinds, failure) if may_handle else contextlib.nullcontext():
                result = run(values)
        except Exception as error:
            kinds.append(failure.kind if is_from_signal_handler(error) else type(error))
            judge(kinds, failure)
            raise
        judge(kinds, failure)
        return result

    def judge(kinds: list[type[BaseException]], failure: Failure) -> None:
        is_the_programs = kinds or may_handle if failure.is_check else failure.kind in kinds
        if not is_the_programs:
            failed(failure)

    return run_again


@contextlib.contextmanager
def _recording(kinds: list[type[BaseException]], failure: Failure) -> Iterator[None]:
    """Records the class of every error raised by Python code in this thread.

    Python has one trace function per thread. If a debugger or a coverage tool has set it, the failure is assumed to be
    the program's own error, because a handler may wait for it.
    """
    if sys.gettrace() is not None:
        kinds.append(failure.kind)
        yield
        return

    def trace(frame: types.FrameType, event: str, arg: Any) -> Any:
        if event == "exception":
            kinds.append(arg[0])
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def is_from_signal_handler(error: BaseException) -> bool:
    """Returns whether a signal handler raised the error. Python passes the interrupted frame to a signal handler."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(_is_given(inner, outer) for outer, inner in itertools.pairwise(frames))


def _is_given(frame: types.FrameType, other: types.FrameType) -> bool:
    """Returns whether an argument of a frame is the frame `other`."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04)  # *args
    values = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
    return any(value is other or (type(value) is tuple and any(item is other for item in value)) for value in values)
