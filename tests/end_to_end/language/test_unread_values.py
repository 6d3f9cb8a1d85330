"""Unread values may change without a compile, however they are moved; a change of a read value compiles.

Each program is called with the first arguments, with arguments that differ in unread values only (one compile for
both), and with arguments that make a difference.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from types import SimpleNamespace as Space
from typing import NamedTuple

import pytest
import torch

import minidynamo

X = torch.arange(4.0)
ONE, TWO = torch.ones(2), torch.ones(3, dtype=torch.float64, requires_grad=True)
Pair = collections.namedtuple("Pair", "first second")


class Point(NamedTuple):
    x: torch.Tensor
    scale: int = 2
    note: str = "n"

    def scaled(self):
        return self.x * self.scale


@dataclasses.dataclass
class Config:
    scale: int = 2
    name: str = "n"
    sizes: tuple = (1, 2, 3)


class Text(tuple):
    def first(self):
        return self[0]


def helper(x, used, unused=None, *rest, **options):
    return x * used


def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def loop(x, items):
    for item in items:
        if item > 2:
            return x * item
    return x


def spread(x, *rest, **options):
    return x * rest[0] * options["a"]


def unpacked(x, pair):
    first, _ = pair
    return x * first


def starts(x, items):
    return x * items[:2][0]


def ends(x, items):
    return x * items[-2:][1]


def passed_on(x, table):
    made = [table["note"]]
    made.append(table["rest"])
    return x * 2, made, (table["count"],)


def stored(x, space, n):
    space.last = n
    return x * 2


def chosen(x, space):
    return x * 2 if space.a is not None and (space.b or space.c) else x


# Programs, the first arguments, arguments that make no difference, and arguments that make a difference.
CASES = {
    "an argument": (lambda x, mask, n: x * 2, [(X, ONE, 1), (X, TWO, "a")], (X.double(), None, 1)),
    "an item of a tuple": (lambda pair: pair[0] * 2, [((X, 1),), ((X, "a", ONE),)], ((1, X),)),
    "the last item of a tuple": (lambda pair: pair[-1] * 2, [((1, X),), ((ONE, "a", X),)], ((X, 1),)),
    "an inner tuple": (lambda x, t: x * t[0][1], [(X, ((1, 2), 3)), (X, ((5, 2, 7),))], (X, ((1, 3), 3))),
    "a field": (lambda p: p.first * 2, [(Pair(X, 1),), (Pair(X, "a"),)], (Pair(X.double(), 1),)),
    "a field that a method reads": (lambda p: p.scaled(), [(Point(X),), (Point(X, 2, "m"),)], (Point(X, 3),)),
    "an item of a size": (lambda x, s: x * s[0], [(X, torch.Size([2, 3])), (X, torch.Size([2]))], (X, torch.Size([3]))),
    "an item of a subclass": (lambda x, t: x * t.first(), [(X, Text((2, 3))), (X, Text((2,)))], (X, Text((3, 3)))),
    "unpacking": (unpacked, [(X, (2, 3)), (X, (2, "a"))], (X, (3, 3))),
    "unpacking an attribute": (
        lambda x, c: unpacked(x, c.p),
        [(X, Space(p=(2, 3))), (X, Space(p=(2, X)))],
        (X, Space(p=(3, 3))),
    ),
    "a slice from the beginning": (starts, [(X, (2, 3, 4)), (X, (2, 4))], (X, (3, 4))),
    "a slice to the end": (ends, [(X, (2, 3, 4)), (X, (3, 4))], (X, (4, 3))),
    "the rest of a loop": (loop, [(X, (1, 3, 4)), (X, (2, 3, "a"))], (X, (3, 3, 4))),
    "arguments with a star": (spread, [(X, 2, 3), (X, 2, "a", ONE)], (X, 3, 3)),
    "an argument of a callee": (lambda x, n, s: helper(x, n, s), [(X, 2, 1), (X, 2, 5)], (X, 3, 1)),
    "what a decorator hands on": (logged(helper), [(X, 2, "m"), (X, 2, "n")], (X, 3, "m")),
    "an argument of a partial": (
        lambda x, p: p(x),
        [(X, functools.partial(helper, used=2, more=1)), (X, functools.partial(helper, used=2, more=5))],
        (X, functools.partial(helper, used=3, more=1)),
    ),
    "a dataclass": (
        lambda x, c: x * c.scale * c.sizes[1],
        [(X, Config()), (X, Config(2, "m", (5, 2)))],
        (X, Config(sizes=(1, 3))),
    ),
    "what is passed on": (
        passed_on,
        [(X, {"note": 0.5, "rest": 1, "count": 2}), (X, {"count": 5, "note": 1.5, "rest": 7})],
        (X.double(), {"count": 1, "note": ONE, "rest": 7}),
    ),
    "what is stored": (stored, [(X, Space(), 1), (X, Space(), 5)], (X.double(), Space(), 5)),
    "which number it is": (lambda x, n: x * 2 if n > 3 else x, [(X, 5), (X, 7)], (X, 3)),
    "which float it is": (lambda x, n: x * 2 if n > 0.5 else x, [(X, 5.0), (X, 0.7)], (X, float("nan"))),
    "which number is true": (lambda x, n: x * 2 if n else x, [(X, 5), (X, -7)], (X, 0)),
    "which text it is": (lambda x, s: x * 2 if s == "a{b}" else x, [(X, "c"), (X, "}d")], (X, "a{b}")),
    "whether there is text": (lambda x, s: x * 2 if s else x, [(X, "c"), (X, "d")], (X, "")),
    "one of some texts": (lambda x, s: x * 2 if s in ("a", "b") else x, [(X, "a"), (X, "b")], (X, "c")),
    "the value of what is no None": (lambda x, n: x * 2 if n is None else x, [(X, 1), (X, 2)], (X, None)),
    "the value of an int": (lambda x, n: x * 2 if isinstance(n, int) else x, [(X, 1), (X, 2)], (X, 1.0)),
    "how many there are": (lambda x, s: x * 2 if s else x, [(X, [1]), (X, [1, 2])], (X, [])),
    "how many keys there are": (lambda x, s: x * 2 if not s else x, [(X, {"a": 1}), (X, {"b": 1, "c": 2})], (X, {})),
    "whether there are many": (lambda x, s: x * 2 if len(s) > 2 else x, [(X, (1,)), (X, ("a", 2))], (X, (1, 2, 3))),
    "what comes behind an and": (
        chosen,
        [(X, Space(a=1, b=2, c=3)), (X, Space(a=4, b=5, c="t"))],
        (X, Space(a=None, b=1, c=1)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_read_may_change(name):
    program, alike, other = CASES[name]
    options = {"a": 2} if program is spread else {}
    compiled = minidynamo.compile(program, backend="eager")
    for compiles, arguments in [*((1, arguments) for arguments in alike), (2, other), (2, alike[0])]:
        actual, expected = compiled(*arguments, **options), program(*arguments, **options)
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)
        assert compiled.stats.compiles == compiles, compiled.why()


def test_a_tuple_itself_stays_the_same_object():
    program = lambda x, t, u: (x + (1 if t is u else 2), t, [t], {"t": t}, t is None)
    compiled = minidynamo.compile(program, backend="eager")
    t, u = (1, [2]), (1, [2])
    for arguments in ((X, t, t), (X, t, u), (X, u, u)):
        out, expected = compiled(*arguments), program(*arguments)
        assert torch.equal(out[0], expected[0]) and out[1] is out[2][0] is out[3]["t"] is arguments[1]


def test_an_unread_item_crosses_a_break():
    def program(x, t):
        y = x * t[0]
        minidynamo.graph_break()
        return y * t[1], t

    compiled = minidynamo.compile(program, backend="eager")
    for t in ((2, 3), (2, 4), (2, 4, 5)):
        out, same = compiled(X, t)
        assert torch.equal(out, X * 2 * t[1]) and same is t


def test_what_was_compared_and_then_used_is_guarded_once():
    compiled = minidynamo.compile(lambda x, n: x * n if n > 0 else x, backend="eager", dynamic=False)
    compiled(X, 3)
    assert "relation" not in str(compiled.guards()) and "value of `n`: 3" in str(compiled.guards())


def test_defaults_that_are_added_in_front_move_no_other():
    def scaled(x, a, b=2, c=3):
        return x * b * c

    compiled = minidynamo.compile(lambda x: scaled(x, 1), backend="eager")
    for defaults in ((2, 3), (7, 2, 3), (5, 3)):
        scaled.__defaults__ = defaults
        assert torch.equal(compiled(X), scaled(X, 1))
    assert compiled.stats.compiles == 2
