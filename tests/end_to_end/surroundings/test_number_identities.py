"""`is` and `id` of computed numbers, and of objects that die at once, answer as in eager."""

from __future__ import annotations

import operator

import pytest
import torch

import minidynamo
from minidynamo.core.events import MinidynamoNotice
from minidynamo.testing import assert_same_as_eager

# A frame that runs eagerly triggers a notice.
pytestmark = pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice")

PROGRAMS = {
    "abs": lambda x, n: (x + n, abs(n) is n),
    "product": lambda x, n: (x + n, n * 1 is n),
    "sum": lambda x, n: (x + n, n + 0 is n, 0 + n is n),
    "plus": lambda x, n: (x + n, +n is n),
    "power": lambda x, n: (x + n, n**1 is n),
    "quotient": lambda x, n: (x + n, n // 1 is n, divmod(n, 1)[0] is n),
    "twice": lambda x, n: (x + n, n + 1000 is n + 1000),
    "chosen": lambda x, n: (x + n, max(n, 3) is n, min(n, 10**6) is n),
    "converted": lambda x, n: (x + n, int(n) is n, round(n) is n, n.__int__() is n, operator.index(n) is n),
    "index": lambda x, n: (x + n, operator.index(n) is operator.index(n)),
    "bits": lambda x, n: (x + n, (n | 0) is n, (n << 0) is n, (n >> 0) is n),
    "size": lambda x, n: (x + n, x.size(0) + n is n + x.size(0)),
    "one id": lambda x, n: (x + n, id(n) == id(n)),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_identity_of_numbers_that_change(name, dynamic):
    inputs = [lambda n=n: (torch.ones(3), n) for n in (1000, 2000, 3001, 5)]
    assert_same_as_eager(PROGRAMS[name], *inputs, dynamic=dynamic)


@pytest.mark.parametrize("name", ["abs", "product", "sum", "plus", "chosen"])
def test_identity_of_floats_that_change(name):
    inputs = [lambda n=n: (torch.ones(3), n) for n in (1000.5, 2000.5, 2.25)]
    assert_same_as_eager(PROGRAMS[name], *inputs)


class Made:
    pass


def of_made(x):
    return x + 1, id(Made()) == id(Made()), id([]) == id([])


def of_tensors(x):
    return x + 1, id(x + 1) == id(x + 2)


def of_bound_again(x):
    a = Made()
    first = id(a)
    del a
    b = Made()
    return x + 1, first == id(b)


@pytest.mark.parametrize("fn", [of_made, of_tensors, of_bound_again])
def test_where_objects_are_made_again_is_left_to_python(fn):
    """The answer depends on the allocator, in eager, too."""
    with pytest.warns(MinidynamoNotice, match="`id` of a new object without references"):
        minidynamo.compile(fn, backend="eager", dynamic=True)(torch.ones(3))


def test_objects_that_live_are_told_apart_in_the_graph():
    def fn(x):
        made, tensors = [Made(), Made()], (x + 1, x + 2)
        seen = {id(each) for each in (*made, *tensors, *made)}
        return tensors, len(seen), id(made[0]) == id(made[1])

    assert_same_as_eager(fn, lambda: torch.ones(3), calls=2, graphs=1, breaks=0)


NAN = float("nan")


@pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "program",
    [
        lambda x, a: (x * a, (a,) == (NAN,), [a] == [NAN], a in (1.5, NAN)),
        lambda x, a: (x * 1, {a: 1}.get(NAN), {NAN: 1}.get(a), NAN in {a}),
        lambda x, a: (x * 1, a == NAN, a != a, [1.5, NAN, a].count(a)),
    ],
)
def test_a_nan_is_found_as_the_object_that_it_is(program, dynamic):
    compiled = minidynamo.compile(program, backend="eager", dynamic=dynamic, recompile_limit=20)
    for a in (0.5, 1.5, NAN, float("nan"), 2.5, NAN):
        assert str(compiled(torch.ones(2), a)) == str(program(torch.ones(2), a))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "program",
    [
        lambda x, a, b: (x * a, (a,) == (b,), [1, a] != [1, b], {"k": a} == {"k": b}, ((a,),) == ((b,),)),
        lambda x, a, b: (x * a, a in [b], a not in (b, 1.5), [a].count(b), (a, 1) < (b, 2), a == b),
        lambda x, a, b: (x * a, (a * 1,) == (a * 1,), [a, b].count(a), (a,) == (b,)),
    ],
)
def test_two_floats_that_become_one_nan(program, dynamic):
    compiled = minidynamo.compile(program, backend="eager", dynamic=dynamic, recompile_limit=20)
    for a, b in ((0.5, 1.5), (1.25, 3.5), (2.0, 7.0), (NAN, NAN), (NAN, float("nan")), (3.0, 3.0), (NAN, 2.0)):
        assert str(compiled(torch.ones(2), a, b)) == str(program(torch.ones(2), a, b))


def of_a_sum(x, n=7000):
    return x + 1, id(n + 1000) == id(n + 1000)


def of_a_sum_of_floats(x, n=7000.5):
    return x + 1, id(n + 1000) == id(n + 1000)


def of_one_that_is_gone(x, n=7000.5):
    m = (n + 1000) * 2
    first = id(n + 1000)
    return x + m, first == id(n + 1000)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("fn", [of_a_sum, of_a_sum_of_floats, of_one_that_is_gone])
def test_where_numbers_are_made_of_a_default_is_left_to_python(fn, dynamic):
    compiled = minidynamo.compile(fn, backend="eager", dynamic=dynamic)
    for keywords in ({}, {}, {"n": 900.5}):
        assert compiled(torch.ones(2), **keywords)[1] is fn(torch.ones(2), **keywords)[1]
