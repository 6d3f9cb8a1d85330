from __future__ import annotations

import copy

import pytest

from tests.bytecode import corpus
from tests.bytecode.stepping import Stepper

IDS = [f"{fn.__qualname__}-{k}" for k, (fn, _, _) in enumerate(corpus.CASES)]


def outcome(run, fn, args, kwargs):
    """Result or exception of a call, what it logged, and its arguments afterwards."""
    args, kwargs = copy.deepcopy(args), copy.deepcopy(kwargs)
    corpus.log.clear()
    try:
        result = run(fn, *args, **kwargs)
        if callable(result):
            result = result()
    except Exception as e:
        result = type(e), str(e)
    return repr((result, corpus.log, [getattr(a, "__dict__", a) for a in args], kwargs))


def native(fn, *args, **kwargs):
    return fn(*args, **kwargs)


@pytest.mark.parametrize("fn, args, kwargs", corpus.CASES, ids=IDS)
def test_stepping_equals_the_plain_call(fn, args, kwargs):
    expected = outcome(native, corpus_copy(fn), args, kwargs)
    assert outcome(lambda f, *a, **k: Stepper(f).step(*a, **k), corpus_copy(fn), args, kwargs) == expected


@pytest.mark.parametrize("fn, args, kwargs", corpus.CASES, ids=IDS)
def test_native_continuation_from_every_point(fn, args, kwargs):
    expected = outcome(native, corpus_copy(fn), args, kwargs)
    fn = corpus_copy(fn)
    stepper = Stepper(fn)
    outcome(lambda f, *a, **k: stepper.step(*a, **k), fn, args, kwargs)
    for count in range(len(stepper.breaks)):
        fn = stepper.fn = corpus_copy(fn)
        run = lambda f, *a, **k: stepper.step_then_continue(count, *a, **k)  # noqa: B023, E731
        assert outcome(run, fn, args, kwargs) == expected, count


def corpus_copy(fn):
    """A function whose closure has not been written by an earlier run."""
    return corpus.free(1) if fn.__qualname__ == "free.<locals>.inner" else fn
