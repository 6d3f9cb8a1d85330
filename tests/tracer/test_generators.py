# Programs are written as users write them, not as a linter would.
# ruff: noqa: C402, UP028

import contextlib

import pytest

from minidynamo.errors import SkipFrame
from tests.end_to_end.programs import Programs, vector
from tests.tracer.capture import capture

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


def count(n):
    for i in range(n):
        yield i


@programs()
def consumed_by_builtins(x):
    a = sum(i * x for i in range(3)), any(i > 1 for i in count(3)), all(i for i in count(2)), list(count(2))
    return a, max(i for i in count(4)), dict((i, x) for i in count(2)), [*count(2)], tuple(zip(count(2), "ab"))


@programs()
def stopped_early(x):
    items = count(5)
    first = next(items)
    for item in items:
        if item == 2:
            break
    return x + first + next(items), next(count(0), "none")


@contextlib.contextmanager
def noted(log):
    log.append("in")
    yield len(log)
    log.append("out")


@programs()
def context_manager_from_a_generator(x):
    log = []
    with noted(log) as n:
        y = x + n
    return y, log


@programs(graphs=None, breaks=None)
def break_inside(x):
    return sum(item.item() for item in x)


@programs(breaks=2)
def not_started_and_passed_to_a_break(x):
    items = (i * 2 for i in range(3))
    print(x.dim())
    return list(items), x + 1


def test_a_started_generator_cannot_be_handed_over():
    def f(x):
        items = count(3)
        next(items)
        return items

    with pytest.raises(SkipFrame, match="MD222"):
        capture(f, vector())
