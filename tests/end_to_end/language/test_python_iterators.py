"""Iterators that are alive at a graph break continue like Python's: same class (except for sets), same position, same
view of changes."""

from __future__ import annotations

import collections
import itertools

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import rows_of


def drained(iterator):
    return type(iterator).__name__, list(iterator)


ITERABLES = {
    "list": lambda: [1, 2, 3],
    "tuple": lambda: (1, 2, 3),
    "range": lambda: range(5, 0, -2),
    "range of one": lambda: range(7, 8),
    "text": lambda: "abc",
    "other text": lambda: "a\xe9b",
    "bytes": lambda: b"abc",
    "dict": lambda: {"a": 1, "b": 2},
    "keys": lambda: {"a": 1, "b": 2}.keys(),
    "values": lambda: {"a": 1, "b": 2}.values(),
    "items": lambda: {"a": 1, "b": 2}.items(),
    "ordered": lambda: collections.OrderedDict(a=1, b=2),
    "deque": lambda: collections.deque([1, 2]),
    "reversed list": lambda: reversed([1, 2, 3]),
    "reversed tuple": lambda: reversed((1, 2, 3)),
    "reversed range": lambda: reversed(range(3)),
    "reversed dict": lambda: reversed({"a": 1, "b": 2}),
    "reversed items": lambda: reversed({"a": 1, "b": 2}.items()),
    "reversed deque": lambda: reversed(collections.deque([1, 2])),
    "zip": lambda: zip([1, 2], range(2), "ab"),
    "enumerate": lambda: enumerate({"a": 1, "b": 2}.items(), 3),
    "map": lambda: map(str, (1, 2)),
    "rows": lambda: torch.arange(4).reshape(2, 2),
}


@pytest.mark.parametrize("taken", (0, 1, 9))
@pytest.mark.parametrize("name", ITERABLES)
def test_iterator_alive_at_a_break(name, taken):
    make = ITERABLES[name]

    def f(x):
        iterator = iter(make())
        first = [next(iterator, None) for _ in range(taken)]
        y = x + 1
        minidynamo.graph_break()
        return y, first, drained(iterator)

    assert_same_as_eager(f, lambda: torch.ones(2), calls=2)


def test_iterator_of_a_set_that_is_alive_at_a_break_goes_on():
    def f(x):
        iterator = iter({4})
        y = x + 1
        minidynamo.graph_break()
        return y, list(iterator)

    assert_same_as_eager(f, lambda: torch.ones(2), calls=2)


class Cases:
    def changed_list(x, xs, d):
        iterator = iter(xs)
        next(iterator)
        xs.append(9)
        minidynamo.graph_break()
        xs.append(10)
        return x + 1, drained(iterator)

    def changed_values(x, xs, d):
        iterator = enumerate(d.items())
        first = next(iterator)
        d["a"] = d["b"] = 5
        minidynamo.graph_break()
        return x + 1, first, drained(iterator)

    def new_values_while_looping(x, xs, d):
        seen = []
        for key, value in d.items():
            d["b"] = 10
            seen.append((key, value))
            x = x + value
        return x, seen

    def broken_loop_with_new_values(x, xs, d):
        for key in d:
            d[key] = d[key] + 1
            x = x + 1
            minidynamo.graph_break()
            x = x * d[key]
        return x

    def another_key_while_looping(x, xs, d):
        iterator = iter(d)
        next(iterator)
        d["c"] = 3
        y = x + 1
        minidynamo.graph_break()
        return y, list(iterator)

    def another_key_while_in_a_loop(x, xs, d):
        for key in d:
            d[key + key] = 1
            x = x + 1
        return x

    def exhausted_stays_exhausted(x, xs, d):
        over_list, over_dict = iter(xs), iter(d)
        list(over_list), list(over_dict)
        xs.append(4)
        d["z"] = 4
        minidynamo.graph_break()
        return x + 1, drained(over_list), drained(over_dict)


@pytest.mark.filterwarnings("ignore:MD2")
@pytest.mark.parametrize(
    "fn",
    rows_of(Cases),
)
def test_iterator_over_something_that_changes(fn):
    assert_same_as_eager(fn, lambda: (torch.ones(2), [1, 2, 3], {"a": 1, "b": 2}), calls=2)


FROM_OUTSIDE = {
    "list": lambda: iter([1, 2, 3]),
    "enumerate": lambda: enumerate("ab"),
    "zip": lambda: zip([1, 2], "ab"),
    "generator": lambda: (k for k in range(3)),
    "chain": lambda: itertools.chain([1], [2, 3]),
}


@pytest.mark.parametrize("name", FROM_OUTSIDE)
def test_an_iterator_from_outside_is_its_own_iterator(name):
    def same(x, iterator):
        return x + (iter(iterator) is iterator)

    def zipped(x, iterator):
        for item, factor in zip(iterator, (2, 3)):
            x = x * factor
        return x, item, list(iterator)

    make = FROM_OUTSIDE[name]
    assert minidynamo.compile(same, backend="eager", fullgraph=True)(torch.zeros(()), make()) == 1
    compiled = minidynamo.compile(zipped, backend="eager")
    assert str(compiled(torch.ones(2), make())) == str(zipped(torch.ones(2), make()))
    assert "__iter__" not in str(compiled.breaks())
