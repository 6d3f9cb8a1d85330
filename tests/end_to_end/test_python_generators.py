# Programs are written as users write them, not as a linter would.
# ruff: noqa: C400, C402, C417, C419, UP028

import pytest

from tests.end_to_end.programs import Programs

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


@programs(breaks=None)
def expressions(x):
    return (
        sum(x * i for i in range(3)),
        any(i > 1 for i in range(3)),
        max(i for i in (1, 3, 2)),
        list(i + 1 for i in (1, 2)),
    )


@programs(breaks=None)
def joined_text(x):
    return x + 1, ",".join(str(i) for i in range(3)), dict((k, 1) for k in "ab"), tuple(i for i in "xy")


def count(n):
    for i in range(n):
        yield i


@programs(breaks=None)
def functions(x):
    total = x
    for i in count(3):
        total = total + i
    return total, list(count(2)), [a * b for a, b in zip(count(3), count(4))]


@programs(breaks=None)
def laziness(x):
    log = []

    def notes():
        for i in range(5):
            log.append(i)
            yield i

    g = notes()
    first = next(g)
    return x + first, log, next(g), list(zip(range(2), g)), next(g)


@programs(breaks=None)
def one_that_stops_early(x):
    def pairs():
        yield x + 1
        yield x + 2
        return

    a, b = pairs()
    return a, b, all(v is not None for v in pairs())
