"""The origin of an error of a graph: the errors of a rerun, and the errors of signal handlers."""

from __future__ import annotations

import functools
import sys

import pytest

from minidynamo.tracer.runtime.graph_failures import CHECK_FAILED, Failure, is_from_signal_handler, rerunner

FAILURE = Failure.of(KeyError("k"))


def raising(error):
    def run(values):
        values.clear()
        raise error

    return run


def handling(error):
    def run(values):
        values.clear()
        try:
            raise error
        except type(error):
            return "handled"

    return run


def reported(run, failure=FAILURE, *, may_handle=False):
    """Returns the failures reported by a run, and its result or error."""
    found = []
    again = rerunner(run, found.append, may_handle=may_handle)
    try:
        result = again([1], failure)
    except Exception as error:
        result = type(error)
    return found, result


def test_a_failure_has_the_class_and_the_first_line():
    assert Failure(KeyError, "KeyError: 'k'") == FAILURE
    assert Failure.of(ValueError("first\nsecond")).text == "ValueError: first"


@pytest.mark.parametrize("may_handle", [False, True])
def test_a_run_without_errors_shows_that_the_graph_failed(may_handle):
    assert reported(lambda values: values.pop(), may_handle=may_handle) == ([FAILURE], 1)


@pytest.mark.parametrize("may_handle", [False, True])
def test_an_error_of_the_same_class_is_the_programs(may_handle):
    assert reported(raising(KeyError("other")), may_handle=may_handle) == ([], KeyError)
    assert reported(raising(ValueError()), may_handle=may_handle) == ([FAILURE], ValueError)


def test_an_error_that_the_program_handles_is_looked_for_where_it_may_be():
    assert reported(handling(KeyError()), may_handle=True) == ([], "handled")
    assert reported(handling(ValueError()), may_handle=True) == ([FAILURE], "handled")
    assert sys.gettrace() is None


def test_a_check_that_fails_stands_for_an_error_of_any_class():
    failure = Failure.of(RuntimeError(CHECK_FAILED))
    assert failure.is_check and not FAILURE.is_check
    assert reported(raising(ValueError()), failure) == ([], ValueError)
    assert reported(lambda values: "ran", failure) == ([failure], "ran")
    assert reported(lambda values: "ran", failure, may_handle=True) == ([], "ran")


def test_a_trace_function_of_others_stays_in_force():
    """Covers a debugger's trace function: then the handlers of the program are unknown."""
    called = []

    def debugger(frame, event, arg):
        called.append(event)

    sys.settrace(debugger)
    try:
        found = reported(lambda values: "ran", may_handle=True)
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(None)
    assert found == ([], "ran") and called


class Handler:
    def __call__(self, number, frame):
        raise TimeoutError

    def method(self, *args):
        raise TimeoutError


def nested(number, frame):
    def stop():
        raise TimeoutError

    stop()


@pytest.mark.parametrize(
    "handler", [Handler(), Handler().method, nested, functools.partial(nested), lambda *args: nested(*args)]
)
def test_an_error_of_a_signal_handler_is_told_by_the_frame_that_it_is_given(handler):
    def interrupted():
        handler(14, sys._getframe())

    def called_by_hand():
        handler(14, None)

    for function, expected in ((interrupted, True), (called_by_hand, False)):
        with pytest.raises(TimeoutError) as caught:
            function()
        assert is_from_signal_handler(caught.value) is expected
    assert not is_from_signal_handler(ValueError())
