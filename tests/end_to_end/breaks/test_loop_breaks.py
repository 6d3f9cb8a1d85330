"""Loops and recursion with breaks: a constant number of compiles, and no objects kept of earlier iterations."""

# The programs keep the style of users, against the advice of linters.

from __future__ import annotations

import enum
import sys
import types
import weakref

import pytest
import torch

import minidynamo
from minidynamo.core.events import on_event
from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Programs, rows_of

programs = Programs()
test_same_as_eager = programs.test()


@minidynamo.disable
def native(value):
    return value


class Loops:
    def over_range(x, n):
        for _ in range(n):
            x = native(x * 0.5) + 1
        return x

    def over_list(x, n):
        for item in [2] * n:
            x = x * 0.5
            minidynamo.graph_break()
            x = x + item
        return x

    def over_pairs(x, n):
        for i, (j, k) in enumerate(zip(range(n), range(n))):  # noqa: B007 (pairs that vary, and are not read)
            x = x * 0.5
            minidynamo.graph_break()
        return x + i + j + k

    def over_items(x, n):
        for _key, _value in {k: k for k in range(n)}.items():
            x = x * 0.5
            minidynamo.graph_break()
        return x

    def with_a_condition(x, n):
        for _ in range(n):
            if x.sum() > 9:
                x = x * 0.5
            else:
                x = x + 1
        return x

    def in_two_loops(x, n):
        for _ in range(n // 4):
            for item in (1, 1, 1, 1):
                x = x * 0.5 + item
                minidynamo.graph_break()
            x = x + 1
        return x

    def in_a_callee(x, n):
        for _ in range(n):
            x = halved(x)
        return x

    def over_generator(x, n):
        for item in (i * 0 for i in range(n)):
            x = x * 0.5
            minidynamo.graph_break()
            x = x + item
        return x


def halved(x):
    x = x * 0.5
    minidynamo.graph_break()
    return x + 1


TABLE = {f"key_{k}": torch.full((3,), float(k)) for k in range(40)}
NAMESPACE = types.SimpleNamespace(**TABLE)


class OverObjects:
    def over_keys(x, n):
        for key in [*TABLE][:n]:
            x = x * 0.5 + TABLE[key]
            minidynamo.graph_break()
        return x

    def over_names(x, n):
        for name in [*vars(NAMESPACE)][:n]:
            minidynamo.graph_break()
            x = x * 0.5 + getattr(NAMESPACE, name)
        return x

    def over_keys_of_a_callee(x, n):
        for key in [*TABLE][:n]:
            x = looked_up(x, key)
        return x

    def over_members(x, n):
        for member in [*Member][:n]:
            x = x * 0.5 + TABLE[member.name]
            minidynamo.graph_break()
        return x


def looked_up(x, key):
    minidynamo.graph_break()
    return x * 0.5 + TABLE[key]


Member = enum.Enum("Member", [*TABLE])
FUNCTIONS = [eval(f"lambda x: x * 0.5 + {k}") for k in range(40)]


def over_functions(x, n):
    for function in FUNCTIONS[:n]:
        minidynamo.graph_break()
        x = function(x) + 1
    return x


@pytest.mark.parametrize("loop", rows_of(Loops) + rows_of(OverObjects))
def test_compiles_are_constant(loop):
    compiles = []
    for n in (8, 40):
        events = []
        unsubscribe = on_event(events.append)
        minidynamo.reset()
        compiled = minidynamo.compile(loop, backend="eager")
        assert torch.equal(compiled(torch.ones(3), n), loop(torch.ones(3), n))
        unsubscribe()
        compiles.append(sum(event.kind == "compile_start" for event in events))
        assert not any(event.kind == "fallback" for event in events)
    assert (
        compiles[0] == compiles[1] <= (11 if loop in rows_of(OverObjects) else 8)
    )  # a few values have separate versions


def test_functions_that_differ_in_each_turn_are_compiled_for_themselves():
    compiled = minidynamo.compile(over_functions, backend="eager")
    for n in (12, 40):
        assert torch.equal(compiled(torch.ones(3), n), over_functions(torch.ones(3), n))
        assert compiled.stats.fallbacks == 0 and compiled.stats.compiles <= 11 + n
    known = compiled.stats.compiles
    assert torch.equal(compiled(torch.ones(3), 40), over_functions(torch.ones(3), 40))
    assert compiled.stats.compiles == known


def test_ten_thousand_rounds():
    n = 10_000
    compiled = minidynamo.compile(Loops.over_range, backend="eager")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        result = compiled(torch.ones(3), n)
    finally:
        sys.setrecursionlimit(limit)
    assert torch.equal(result, Loops.over_range(torch.ones(3), n))
    assert compiled.stats.compiles <= 4


def test_nothing_is_kept_of_earlier_rounds():
    alive = []
    seen: list[weakref.ref[torch.Tensor]] = []

    @minidynamo.disable
    def look(value):
        alive.append(sum(ref() is not None for ref in seen))
        seen.append(weakref.ref(value))

    def loop(x, n):
        for _ in range(n):
            x = x * 0.5 + 1
            look(x)
        return x

    minidynamo.compile(loop, backend="eager")(torch.ones(3), 20)
    assert max(alive) <= 1


def countdown(x, n):
    x = x + 1
    if n == 0:
        return x
    minidynamo.graph_break()
    x = countdown(x, n - 1)
    return x * 0.5


def test_recursion_compiles_one_function():
    compiled = minidynamo.compile(countdown, backend="eager")
    assert torch.equal(compiled(torch.ones(3), 100), countdown(torch.ones(3), 100))
    assert compiled.stats.compiles < 10


def inner(y):
    y = y + 1
    minidynamo.graph_break()
    print("inner")
    return y * 2


def outer(y):
    y = inner(y) + 3
    minidynamo.graph_break()
    print("outer")
    return y


@programs(graphs=None, breaks=None)
class Iterators:
    @programs(graphs=4, breaks=4, recompiles=0)
    def nested_calls_that_break(x):
        return outer(x) + 4

    def one_loop_in_another_callee(x):
        def rounds(y, n):
            for i in range(n):
                y = y + i
                minidynamo.graph_break()
                print(i)
            return y

        for n in (1, 2):
            x = rounds(x, n)
            minidynamo.graph_break()
            print("round", n)
        return x

    def leaving_early(x):
        found = []
        for i in range(6):
            if i == 1:
                continue
            x = x + i
            minidynamo.graph_break()
            print(i)
            if i == 4:
                found.append(i)
                break
        else:
            found.append("else")
        while True:
            x = x * 2
            minidynamo.graph_break()
            print("while")
            if x.abs().sum() > 10:
                break
        return x, found


def test_growing_list_is_the_same():
    def collect(x):
        rows = []
        for i in range(12):
            x = x * 0.5
            minidynamo.graph_break()
            print(i)
            rows.append(x + i)
        return rows, len(rows)

    assert_same_as_eager(collect, lambda: torch.ones(3))  # not read after the break: no guard on its length


def given_names():
    return torch.ones(3), ("a", "b", "c")


def other_names():
    return torch.ones(3), ("b", "b", "b", "a")


@programs(given_names, other_names, graphs=None, breaks=None)
def over_a_tuple_argument(given):
    x, names = given
    found = []
    for name in names:
        found.append(native(x) if name == "b" else x * 2)
    return found


@programs(graphs=None, breaks=None)
def over_a_default(x):
    def body(y, names=("a", "b", "c")):
        for name in names:
            y = native(y) * 2 if name == "b" else y + 1
        return y

    return body(x)


NAMES = ("a", "b", "c", "d")


@programs(graphs=None, breaks=None)
def over_a_global_tuple(x):
    rest = iter(NAMES)
    first = next(rest)
    for name, number in zip(rest, (1, 2, 3)):
        x = native(x) * number if name == "c" else x + len(first)
    return x, tuple(rest)


@programs(graphs=1, breaks=0)
def a_started_tuple_iterator_is_returned(x):
    rest = iter(NAMES)
    return x * len(next(rest)), type(rest).__name__, list(rest), next(iter(NAMES))


class Varying:
    def over_pieces(x, n):
        pieces = []
        for piece in x.split(1):
            pieces.append(bool((piece * 2).sum() > -1e9))
        return x * pieces[0]

    def over_chunks(x, n):
        total = 0
        for place, chunk in enumerate(x.chunk(n)):
            total = total + chunk.sum() * place
            minidynamo.graph_break()
        return total

    def over_rows(x, n):
        total = x[0]
        for row, other in zip(x, x.unbind(0)):
            total = total * 0.5 + row
            minidynamo.graph_break()
            total = total + other
        return total

    def backwards(x, n):
        for place in reversed(range(1, n)):
            x = x * 0.5 + place
            minidynamo.graph_break()
        return x

    def by_comprehension(x, n):
        parts = [native(x * place) for place in range(n)]
        return x + len(parts)

    def in_loops_of_varying_lengths(x, n):
        for place in range(n):
            for more in range(place):
                x = x * 0.5 + more
                minidynamo.graph_break()
            x = x + place
        return x


@pytest.mark.parametrize("loop", [Loops.over_range, Loops.in_a_callee, *rows_of(Varying)])
def test_no_length_is_compiled_once_two_have_been_seen(loop):
    compiled = minidynamo.compile(loop, backend="eager")
    compiles = []
    for n in (3, 4, 5, 6, 7, 9, 4, 14):
        x, before = torch.randn(n, 3), compiled.stats.compiles
        assert torch.equal(compiled(x, n), loop(x, n))
        compiles.append(compiled.stats.compiles - before)
    assert sum(compiles[2:]) == 0, compiles
    assert compiled.stats.fallbacks == 0


class Parts:
    def with_a_break(items, x):
        for item in items:
            x = native(x * 0.5) + item
        return x

    def left_early(items, x):
        for item in items:
            if item == 1:
                return x + item
        return x

    def beside_a_shorter_one(items, x):
        for one, two in zip([2], items):
            x = x * one + two
        return x


@pytest.mark.parametrize("container", [list, tuple])
@pytest.mark.parametrize("loop", rows_of(Parts))
def test_what_a_loop_does_not_come_to_does_not_count(loop, container):
    compiled = minidynamo.compile(loop, backend="eager")
    for n in (1, 2, 5, 9):
        items = container([1, 3] * n)
        assert torch.equal(compiled(items, torch.ones(3)), loop(items, torch.ones(3)))
        if n == 1:
            known = compiled.stats.compiles
    assert compiled.stats.compiles == known, compiled.why()
    assert torch.equal(compiled(container(), torch.ones(3)), torch.ones(3))


@pytest.mark.parametrize("container", [list, tuple])
def test_turns_that_look_at_no_item_count(container):
    def loop(items, x):
        for _ in items:
            x = x + 1
        return x

    compiled = minidynamo.compile(loop, backend="eager")
    for n in (3, 2, 0, 4, 3):
        assert torch.equal(compiled(container([None] * n), torch.zeros(3)), torch.full((3,), float(n)))
    assert compiled.stats.compiles == 4


class Shape:
    pass


class Round(Shape):
    pass


def some_of(makers, number):
    """Returns a list of values of two makers, which alternate in another way for each number."""
    return [makers[(number * k // 3) % 2]() for k in range(12)]


def nothing():
    return None


def pair():
    return torch.ones(2)


class Kinds:
    """Programs that decide by the kind of each item; each takes a tensor and a number, which chooses the kinds."""

    def items_that_are_none(number):
        items = some_of((pair, nothing), number)

        def f(items):
            mask = torch.tensor(tuple(map(lambda item: item is not None, items)))  # noqa: C417
            return torch.cat([item for item in items if item is not None]).sum() * mask

        return f, (items,)

    def fields_that_are_none(number):
        items = [(torch.ones(1), item) for item in some_of((pair, nothing), number)]

        def f(items):
            first, second = zip(*items)
            present = [item for item in second if item is not None]
            return torch.cat(first).sum() + torch.stack(present).sum(0)

        return f, (items,)

    def objects_of_two_classes(number):
        def f(x, items):
            for item in items:
                x = x + 1 if isinstance(item, Round) else x * 2
            return x.cos()

        return f, (torch.ones(2), some_of((Shape, Round), number))

    def flags(number):
        def f(x, flags):
            x = x.sin()
            for flag in flags:
                x = x + 1 if flag else x * 2
            return x.cos()

        return f, (torch.ones(2), some_of((bool, lambda: True), number))


@pytest.mark.parametrize("program", rows_of(Kinds))
def test_kinds_of_items_that_vary_are_left_to_python(program):
    f, _ = program(2)
    compiled, compiles = minidynamo.compile(f, backend="eager"), []
    for number in (1, 2, 3, 4, 5, 7, 8, 9, 10, 11):
        assert torch.equal(compiled(*program(number)[1]), f(*program(number)[1]))
        compiles.append(compiled.stats.compiles)
    assert compiles[3] == compiles[-1], compiles
    # Whether Python runs a small loop in one step depends on the bytecode, and so on the interpreter.
    assert compiled.stats.fallbacks == str(compiled.explain()).count("MD308 the loop in")
    assert compiled.stats.graph_breaks > 0


@pytest.mark.parametrize("options", [{"fullgraph": True}, {"dynamic": False}])
def test_each_combination_of_kinds_has_a_version_if_the_options_ask(options):
    f, _ = Kinds.objects_of_two_classes(2)
    compiled = minidynamo.compile(f, backend="eager", **options)
    for number in (2, 4, 5):
        arguments = Kinds.objects_of_two_classes(number)[1]
        assert torch.equal(compiled(*arguments), f(*arguments))
    assert compiled.stats.graph_breaks == 0 and compiled.stats.compiles == 3


def test_caches_that_are_filled_once_break_no_graph():
    def f(x, caches):
        return sum(x if cache is None else x * cache for cache in caches)

    compiled, x = minidynamo.compile(f, backend="eager"), torch.ones(2)
    filled = [torch.ones(2)] * 8
    for caches in ([None] * 10, [*filled, None, None], [*filled, None, None]):
        assert torch.equal(compiled(x, caches), f(x, caches))
    assert compiled.stats.compiles == 2 and compiled.stats.graph_breaks == 0
