"""Identities of immutable objects across two calls equal eager's: in results, effects, closures, after a break.

Each operation of the table goes to each place; then all visible objects are compared pairwise.
"""

from __future__ import annotations

import collections
import datetime
import math
import re
import types

import pytest
import torch

import minidynamo
from tests.end_to_end.programs import rows_of

# A frame that reads the identity of computed numbers runs eagerly, with a notice.
pytestmark = pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice")

X = torch.ones(300, 3)
BIG = 123456
Pair = collections.namedtuple("Pair", "one other")


class Box:
    pass


BOX = Box()
LIST: list = []
KEPT = None


def same(one, other):
    return one is other


def raised(act, n):
    try:
        act(n)
    except Exception as error:
        return error
    return None


FAILING = (
    *(lambda n: [][n], lambda n: ()[n], lambda n: [].pop(), lambda n: [1].__getitem__(n), lambda n: "ab"[n]),
    *(lambda n: {}[n], lambda n: {"a": 1}[n, "b"], lambda n: {1}.remove(n), lambda n: next(iter(())), lambda n: n / 0),
    *(
        lambda n: int("x"),
        lambda n: [1].index(n),
        lambda n: n + "a",
        lambda n: n.name,
        lambda n: [a for a, b in ["abc"]],
    ),
)
OPERATIONS = {
    "int": lambda n, s: (lambda m: [m, n + 1000, m])(n + 1000),
    "float": lambda n, s: [n * 1.5, n / 3, -0.0 * n, float("inf")],
    "complex": lambda n, s: [n * 2j, 3j],
    "long": lambda n, s: [n**30, n**30, 10**40],
    "text": lambda n, s: [s + " b", s + " b", s.upper(), f"{s}{n}", "_".join([s, "q"]), s + "b"],
    "letters": lambda n, s: [s[0], s[-1:], chr(98), str(len(s)), str(n > 1), str(None)],
    "bytes": lambda n, s: [s.encode(), s.encode()[:1], bytes(3)],
    "errors": lambda n, s: [arg for act in FAILING for error in (raised(act, n), raised(act, n)) for arg in error.args],
    "parts of text": lambda n, s: [(s + " " + s).split(), s.partition("b"), s.strip(), s * 1, s[:]],
    "literals": lambda n, s: [1000, -1000, 2.5, "a b", "name", b"a b", (1000, "a b", (1, 2.5)), 1000],
    "read": lambda n, s: [n, s, BIG, BIG + 0, math.pi, math.sqrt(n)],
    "the same": lambda n, s: [int(n), n * 1, n + 0, +n, abs(n), round(n), max(n, 1), str(s), sum([n]), sum([n, n])],
    "is": lambda n, s: [n * 1 is n, +n is n, same((1, 2), (1, 2)), n + 1 is n + 1, s + "" is s, slice(0, n).stop is n],
    "tuples": lambda n, s: [(n, s), (n + 1, 7), (7, 8, len(s)), ((7, 8), len(s)), (7, len(s)), ()],
    "whole tuples": lambda n, s: (lambda t: [t, t[:], tuple(t), t + (), () + t, t * 1, t[0:9], t * 2])((n, s)),  # noqa: RUF005
    "frozensets": lambda n, s: [frozenset([n, 7]), frozenset((n,)), frozenset()],
    "ranges": lambda n, s: [range(n), range(n).stop, slice(0, n), slice(n, n + 1), slice(0, n).stop],
    "items of ranges": lambda n, s: [[*range(1000, 1003)], [*enumerate("ab", 1000)], divmod(n * 1000, 3)],
    "keys": lambda n, s: [{s + "k": n, s + "l": 1}, [*{s + "k": 1}], {s + "k": n + 1}[s + "k"], {n + 1000}],
    "sizes": lambda n, s: [X.shape[0], X.size(0), X.shape, X.size(), X.numel(), X.shape[0] is X.size(0), len(X)],
    "torch": lambda n, s: [torch.device("cpu"), X.device, X.dtype, str(X.dtype), torch.finfo(torch.float32)],
    "names": lambda n, s: [Pair.__name__, type(n).__name__, len.__doc__, list[int]],
    "named tuples": lambda n, s: [Pair(n, 1), Pair(1, 2), Pair(n, s) == Pair(n, s)],
    "matches": lambda n, s: (lambda m: [m, m, re.match("a", s), m is re.search("b", s), m.group()])(re.search("b", s)),
    "found matches": lambda n, s: [*re.finditer("[ab]", s), re.fullmatch("a|abc", s).span()],
    "zones": lambda n, s: [datetime.UTC, *[datetime.timezone(datetime.timedelta(hours=h)) for h in (0, 1, 1)]],
    "converted": lambda n, s: [int(str(n)), int(float(n)), float(str(n)), len([0] * n)],
}


class Places:
    def result(x, n, s, made):
        return x + 1, made(n, s), made(n, s)

    def effects(x, n, s, made):
        global KEPT
        BOX.one = KEPT = made(n, s)
        LIST[:] = [BOX.one, made(n, s)]
        return x + 1

    def closure(x, n, s, made):
        kept = made(n, s)
        return x + 1, lambda: kept

    def generator(x, n, s, made):
        def items():
            yield made(n, s)
            yield from made(n, s)

        return x + 1, [*items()], dict(zip("ab", items()))

    def broken(x, n, s, made):
        one, other = made(n, s), made(n, s)
        y = x + 1
        minidynamo.graph_break()
        return y, one, other, [a is b for a in one for b in other if type(a) is not torch.Size]


PLACES = rows_of(Places)


def leaves(value):
    if isinstance(value, types.FunctionType):
        return leaves(value())
    below = ()
    if isinstance(value, dict):
        below = (*value, *value.values())
    elif isinstance(value, slice):
        below = (value.start, value.stop, value.step)
    elif isinstance(value, list | tuple | set | frozenset):
        below = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
    return [value, *(leaf for part in below for leaf in leaves(part))]


def seen(function, made):
    """Returns for each object of two calls its first position, and its description."""
    global KEPT
    KEPT = None
    LIST.clear()
    vars(BOX).clear()
    n, s = int("5000"), "".join(["a", "bc"])
    kept = [n, s]
    for _ in range(2):
        kept.append((function(X, n, s, made), [*LIST], KEPT, dict(vars(BOX))))
    found = [n, s, *leaves(kept[2:])]
    first: dict[int, int] = {}
    places = [first.setdefault(id(leaf), place) for place, leaf in enumerate(found)]
    return [*zip(places, (repr(leaf) if type(leaf) in (int, float, str, bool) else "" for leaf in found))]


NUMBERS_PREFIX = ("int", "float", "read", "the same", "is", "tuples", "ranges", "keys", "sizes", "converted")


@pytest.mark.parametrize(
    ("name", "dynamic"), [*((name, None) for name in OPERATIONS), *((name, True) for name in NUMBERS_PREFIX)]
)
def test_objects_of_two_calls(name, dynamic):
    for place in PLACES:
        compiled = minidynamo.compile(place, backend="eager", dynamic=dynamic)
        expected, found = seen(place, OPERATIONS[name]), seen(compiled, OPERATIONS[name])
        assert found == expected, place.__name__


@minidynamo.compile(backend="eager")
def literals(x):
    return x + 1, 1000, (2.5, "a b"), 1000


def test_a_literal_is_one_object_in_all_versions():
    first, second = literals(torch.ones(3)), literals(torch.ones(3, dtype=torch.float64))
    constants = literals.__wrapped__.__code__.co_consts
    assert literals.stats.compiles == 2
    for one, other in zip(first[1:], second[1:]):
        assert one is other and any(one is constant for constant in constants)


def sliced(x, items):
    return x + 1, items[:2], items[:2] is items, items[1:]


@pytest.mark.parametrize("lengths", [(3, 2, 3), (2, 3, 4, 2), (1, 2)])
def test_slices_of_tuples_that_are_given(lengths):
    compiled = minidynamo.compile(sliced, backend="eager")
    for length in lengths:
        items = tuple(range(1000, 1000 + length))
        for expected, found in zip(sliced(X, items)[1:], compiled(X, items)[1:]):
            assert found == expected and (found is items) == (expected is items)


@pytest.mark.parametrize("make", [lambda: torch.device("cpu"), lambda: range(3), lambda: 2j, lambda: torch.finfo()])
def test_an_equal_object_is_not_taken_for_the_one_that_is_given(make):
    compiled = minidynamo.compile(lambda x, value: (x + 1, value, value == make()), backend="eager")
    for value in (make(), make()):
        assert compiled(X, value)[1] is value
