"""Objects with `__del__`: what happens when they die happens at the moment when it does in eager."""

from __future__ import annotations

import pytest

from tests.end_to_end.histories import Histories, compare, vector

histories = Histories()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("history", histories)
def test_same_as_eager(history):
    compare(history, "eager")


def finalized(log):
    class Resource:
        def __init__(self, name):
            self.name = name

        def __del__(self):
            log.append(self.name)

    return Resource


@histories
def made_and_given_up_in_a_frame(compiled):
    log = []
    Resource = finalized(log)

    @compiled
    def f(x):
        first = Resource("first")
        y = x + 1
        del first
        log.append("between")
        second = Resource("second")
        return y * len(second.name)

    for _ in range(2):
        yield f(vector()), list(log)


@histories
def made_by_a_callee(compiled):
    log = []
    Resource = finalized(log)

    def named(x):
        return [Resource(name).name for name in ("a", "b")], x * 2

    @compiled
    def f(x):
        log.append("before")
        names, y = named(x)
        log.append("after")
        return names, y

    for _ in range(2):
        yield f(vector()), list(log)


@histories
def finalizer_that_the_class_gets_later(compiled):
    log = []

    class Plain:
        scale = 2

    @compiled
    def f(x):
        return x * Plain().scale

    yield f(vector()), list(log)
    Plain.__del__ = lambda self: log.append("died")
    yield f(vector()), list(log)
