"""A frame's resulting objects equal eager's in identity: an argument, or a new equal object."""

from __future__ import annotations

import pytest
import torch

import minidynamo

# A frame that reads the identity of computed numbers runs eagerly, with a notice.
pytestmark = pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice")

X = torch.ones(3)


def new(value):
    """Returns a new equal object."""
    return type(value)(str(value))


class Box:
    pass


def stored(x, n):
    box = Box()
    box.n, box.m = n, n * 1
    return x * n, box.n, box.m


def crossing(x, n):
    m, k, same = n * 1, n + 0, +n
    y = x + n
    minidynamo.graph_break()
    return y, m is n, k is n, same is n, abs(m) is m, m, same


def in_a_loop(x, n):
    kept = []
    total = n * 1
    for _ in range(40):
        total = total + n - n
        kept.append(total)
    minidynamo.graph_break()
    return x + n, kept[0] is total, kept[-1] is total, total is n, kept[3]


def twice(x, n):
    a, b = n * 1000, n * 1000
    c = b
    minidynamo.graph_break()
    return x + n, a is b, b is c, a, b


NUMBERS = {
    "read": lambda x, n: (x * n, n, [n], {"n": n}["n"]),
    "arithmetic": lambda x, n: (x + n, n * 1, n + 0, 0 + n, n - 0, 0 - (-n), n * 1 * 1, (n + 1) - 1, n**1),
    "keys": lambda x, n: (x * n, *{n}, *{n: 1}),
    "stored": stored,
    "crossing": crossing,
}
SEVERAL = {"in a loop": in_a_loop, "twice": twice}


def alike(result, given):
    return [value is given for value in result[1:]], [value for value in result[1:] if isinstance(value, bool)]


def compare(program, values, dynamic):
    compiled = minidynamo.compile(program, backend="eager", dynamic=dynamic)
    for value in map(new, values):
        expected, found = program(X, value), compiled(X, value)
        assert [*map(str, found)] == [*map(str, expected)]
        assert alike(found, value) == alike(expected, value)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", NUMBERS.values(), ids=NUMBERS)
def test_ints(program, dynamic):
    compare(program, (1000, 2000, 3001, 5, 2**35), dynamic)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", NUMBERS.values(), ids=NUMBERS)
def test_floats(program, dynamic):
    compare(program, (1000.5, 2000.5, 2.25, 1000.5), dynamic)


@pytest.mark.parametrize("program", SEVERAL.values(), ids=SEVERAL)
def test_several_that_are_equal(program):
    compare(program, (1000, 2000, 3001, 5, 2**35), True)
    compare(program, (1000.5, 2000.5, 2.25), True)
