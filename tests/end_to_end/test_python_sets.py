"""Sets in captured programs: their algebra, and loops over them where the order is that of eager."""

import pytest
import torch

import minidynamo
from minidynamo.events import MinidynamoNotice
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Programs

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


@programs()
def algebra(x):
    a, b = {1, 2, 3}, {2, 3, 4}
    return (
        x + 1,
        (a & b, a | b, a - b, a ^ b),
        (a <= b, a < b, a >= {1}, a.issubset(b), a.issuperset({1}), a.isdisjoint({7})),
        (a.union([5], [6]), a.intersection([1], [1, 2]), a.difference([1]), a.symmetric_difference([1, 9])),
        ({1, 2} == {2, 1}, 3 in a, len(a), sorted(a), sum(a), max(a), min(b)),
        ({*a, *b}, set(), set("hello"), {i % 2 for i in range(5)}, {1} | {True}),
    )


@programs()
def changes(x):
    a, b = {1, 2, 3}, {2, 3, 4}
    c, d, e, f, g, h = (a.copy() for _ in range(6))
    c.update([9], {8})
    c.discard(1)
    c.remove(2)
    d ^= b
    e.symmetric_difference_update(b)
    f &= b
    g -= b
    h |= b
    return x * 2, a, c, d, e, f, g, h


@programs()
def frozen(x):
    a, b = {1, 2, 3}, frozenset([1, 2])
    return (
        x + 1,
        b | {3},
        b & a,
        {b: 1}[frozenset([2, 1])],
        b == {1, 2},
        type(b | a),
        type(a | b),
        {1, 2} in {b},
        b.union([4]),
    )


@programs()
def loops_over_new_sets(x):
    out = []
    for n in {3, 1, 2}:
        out.append(n)
    for name in {"a", "b", "cc", "dd", "e", "f"}:
        out.append(name)
    words = set(["q", "w", "e"])
    words.add("r")
    words.discard("q")
    return (
        x + len(out),
        out,
        list(words),
        list({c + "x" for c in "abcdefg"}),
        list(set("hello") | {"a", "b"}),
        list(words.copy()),
        ",".join(list(frozenset("xyz"))),
        [k for k in set({"a": 1, "b": 2})],
        list({(1, "a"), (2, "b"), (0, None)}),
    )


@programs()
def popping(x):
    words = {"aa", "bb", "cc", "dd", "e", "f"}
    first = words.pop()
    words.update({"g", "h"})
    return x * 2, first, words.pop(), list(words)


@programs()
def sets_that_are_returned(x):
    words = set("hello")
    words.update({"a", "b"})
    return x + 1, words, {8, 0, 16}, [list(s) for s in (words, {8, 0, 16})]


NAMES = {"w", "e", "r", "t"}


@programs(graphs=0)
def loop_over_a_global(x):
    return x, list(NAMES), [name + "!" for name in NAMES], sorted(NAMES)


@programs(lambda: (torch.ones(2), {"a", "b", 3, None}))
def loop_over_an_argument(x, names):
    return x + 1, [n for n in names], list(names)


@programs(breaks=None, graphs=None)
def a_break_in_a_loop_over_a_set(x):
    for name in {"a", "b", "c"}:
        print(name)
        x = x + 1
    return x


@programs(lambda: (torch.ones(2), {"a", "b"}), breaks=1, graphs=None)
def a_changed_argument_has_no_known_order(x, names):
    y = x + 1
    names.add("c")
    names.discard("a")
    return y, sorted(names), len(list(names))


def test_another_order_of_equal_items_is_noticed():
    def f(x, items):
        return x, list(items)

    compiled = minidynamo.compile(f, backend="eager")
    # 0 and 8 share a place in a small table: the one that came first has it.
    for made in ([0, 8], [8, 0], [0, 8]):
        items = set(made)
        assert compiled(torch.ones(1), items)[1] == list(items)
    assert list(set([0, 8])) != list(set([8, 0]))


def test_sets_that_change_while_they_are_looped_over():
    def f(x):
        items = {1}
        for item in items:
            items.add(item + 1)
        return x

    compiled = minidynamo.compile(f, backend="eager")
    with pytest.warns(MinidynamoNotice, match="runs as written"), pytest.raises(RuntimeError, match="changed size"):
        compiled(torch.ones(2))


def test_items_of_an_argument_are_guarded():
    def f(x, items):
        for item in items:
            x = x * item
        return x

    inputs = [lambda n=n: (torch.ones(1), set(range(1, n))) for n in (2, 4, 3)]
    assert_same_as_eager(f, *inputs, recompiles=2)
