"""Owns the question whose an error of a graph is: the program's, that of a signal handler, or that of the backend.

A frame whose graph has failed runs again eagerly. The program's own error comes up there too. An error that does not
come up there is a failure of the backend or of generated code, and is told. How the frame gets its values back is the
business of `rollback.py`.
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
"""What a graph says where a check of a decision of the program fails, so that the frame has to run again."""


@dataclass(frozen=True)
class Failure:
    """What a graph raised: its class, a line of text, and the lines of the program that raised it, where known. The
    error itself would keep the values of all its frames alive."""

    kind: type[BaseException]
    text: str
    lines: tuple[str, ...] = ()

    @property
    def is_check(self) -> bool:
        """Whether the graph has checked a decision of the program that is another one now."""
        return CHECK_FAILED in self.text

    @staticmethod
    def of(error: BaseException) -> Failure:
        """The failure that an error is."""
        return Failure(type(error), summary(error), tuple(artifacts.users_lines(error)))


def running_again(
    run: BoxedCallable, failed: Callable[[Failure], None], *, may_handle: bool
) -> Callable[[list[Any], Failure], Any]:
    """A function that runs a frame again eagerly, by `run`, and gives `failed` the failure of the graph if the program
    raises no error of its class.

    `may_handle`: the program may handle the error inside the frame, so that it has to be watched. A check that fails
    stands for an error of any class; one that is handled may be that of a twin, which the function that it stands for
    does not raise.
    """

    @artifacts.passed_over
    def run_again(values: list[Any], failure: Failure) -> Any:
        kinds: list[type[BaseException]] = []
        try:
            with _noting(kinds, failure) if may_handle else contextlib.nullcontext():
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
def _noting(kinds: list[type[BaseException]], failure: Failure) -> Iterator[None]:
    """Note the class of every error that Python code raises in this thread.

    Python has one trace function per thread. Where a debugger or a tool for coverage has set it, the failure is taken
    for the program's: it may be what a handler waits for.
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
    """Whether a handler of a signal raised the error. Python calls it with the frame that it interrupts."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(_is_given(inner, outer) for outer, inner in itertools.pairwise(frames))


def _is_given(frame: types.FrameType, other: types.FrameType) -> bool:
    """Whether one of the arguments of a frame is another frame."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04)  # *args
    values = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
    return any(value is other or (type(value) is tuple and any(item is other for item in value)) for value in values)
