"""Owns the classification of an error of a graph: an error of the program, of a signal handler, or of the backend.

A frame whose graph has failed runs again eagerly. An error of the program then occurs again. An error that does not
occur again is a failure of the backend or of generated code, and is reported. `rollback.py` restores the values of the
frame, or, after writes that cannot be undone, keeps the written memory (`KeptMemory`).
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.core import artifacts
from minidynamo.core.records import record
from minidynamo.errors import summary
from minidynamo.graph.boxed import BoxedCallable

CHECK_FAILED = "the program raises an error here"
"""The message of a failed runtime assert, which makes the frame run again."""

NOT_FINITE = "a number is not finite, and the program decides by it"
"""The message of a failed runtime assert of a decision without a raising side."""


class KeptMemory:
    """The contents of tensors when a graph raised `error`, and the version counters from before the graph.

    The second run starts with these counters. It repeats the effects on Python objects up to the error, as in eager; no
    effect may depend on the contents. Afterwards, the tensors have these contents again.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], versions: Sequence[int | None], error: Exception) -> None:
        with torch.inference_mode():
            storages = {compat.memory_of(tensor): tensor.untyped_storage() for tensor in tensors}
            self._contents = [(storage, storage.clone()) for storage in storages.values()]
        self._versions = [(tensor, version) for tensor, version in zip(tensors, versions) if version is not None]
        self._errors = [error]

    def run(self, function: Callable[[list[Any]], object], values: list[Any]) -> None:
        """Runs a frame; raises its error or, if there is none, the error of the graph."""
        compat.set_versions([tensor for tensor, _ in self._versions], [version for _, version in self._versions])
        error = self._errors.pop().with_traceback(None)
        try:
            function(values)
            raise error
        finally:
            self._restore()
            del error  # it would be part of a reference cycle

    def _restore(self) -> None:
        with torch.inference_mode():
            for storage, contents in self._contents:
                storage.copy_(contents)


@record(frozen=True)
class Failure:
    """An error raised by a graph, without the error object: the traceback would keep the values of all frames alive."""

    #: class of the error
    kind: type[BaseException]
    #: one line of text
    text: str
    #: the lines of the program that raised, where known
    lines: tuple[str, ...] = ()
    #: the contents of overwritten memory, if the rerun must not change them; the call then raises after the rerun
    kept: KeptMemory | None = None

    @property
    def is_check(self) -> bool:
        """True if a runtime assert of the graph failed."""
        return CHECK_FAILED in self.text or self.is_not_finite

    @property
    def is_not_finite(self) -> bool:
        """True if the program ran as if all numbers were finite, and one is not."""
        return NOT_FINITE in self.text

    @staticmethod
    def of(error: BaseException, kept: KeptMemory | None = None) -> Failure:
        """Returns the failure for an error."""
        return Failure(type(error), summary(error), tuple(artifacts.users_lines(error)), kept)


def rerunner(
    run: BoxedCallable, failed: Callable[[Failure], None], *, may_handle: bool
) -> Callable[[list[Any], Failure], Any]:
    """Returns a function that runs a frame again eagerly, by `run`, and passes the graph's failure to `failed` if the
    program raises no error of the same class.

    `may_handle`: the program may handle the error inside the frame, so errors must be watched. A failed runtime assert
    matches an error of any class. A handled error does not prove a match: a polyfill may raise more errors than the
    original. A number that is not finite is always passed to `failed`, since the next call is captured differently.
    """

    @artifacts.skipped_by_warnings
    def run_again(values: list[Any], failure: Failure) -> Any:
        if failure.kept is not None:
            return failure.kept.run(run, values)
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
        is_of_program = kinds or may_handle if failure.is_check else failure.kind in kinds
        if failure.is_not_finite or not is_of_program:
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
    return any(_is_argument_of(inner, outer) for outer, inner in itertools.pairwise(frames))


def _is_argument_of(frame: types.FrameType, other: types.FrameType) -> bool:
    """Returns whether an argument of a frame is the frame `other`."""
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04)  # *args
    values = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
    return any(value is other or (type(value) is tuple and any(item is other for item in value)) for value in values)
