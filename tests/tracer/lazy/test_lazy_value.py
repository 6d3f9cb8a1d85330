"""External values that are only moved may be anything, as long as they exist; reads are guarded."""

from __future__ import annotations

import itertools
import types

import pytest
import torch

import minidynamo
from minidynamo.testing import no_recompile

X = torch.arange(4.0)
VALUES = [1, "a", None, torch.ones(2), torch.ones(3).double(), [1], {}, torch.relu, torch.nn.ReLU(), types, int, len]
VALUES += [2.5, True]


class Holder:
    def __init__(self, value):
        self.v = value

    def get(self):
        return self.v

    @property
    def held(self):
        return self.v


class Slots:
    __slots__ = ("v",)

    def __init__(self, value):
        self.v = value


class Stores(torch.nn.Module):
    def forward(self, x, holder):
        self.last = holder
        return x * 2, self.last


def same(value):
    return value


def ignores(x, _):
    return x * 2


def unpacked(x, pair):
    _, second = pair
    return x * 2, second


def global_of(x, _):
    return x * 2, HANDED


def behind_a_break(x, holder):
    value = holder.v
    minidynamo.graph_break()
    return x * 2, value


HANDED: object = 0
PROGRAMS = {
    "attribute": (lambda x, h: (x * 2, h.v), Holder),
    "a packed attribute": (lambda x, h: (x * 2, {"v": h.v}, [h.v]), Holder),
    "slot": (lambda x, h: (x * 2, h.v), Slots),
    "item of a tuple": (lambda x, t: (x * 2, t[0]), lambda v: (v, 1)),
    "item of a list": (lambda x, t: (x * 2, t[1]), lambda v: [2, v]),
    "value of a dict": (lambda x, d: (x * 2, d["v"]), lambda v: {"v": v}),
    "unpacked": (unpacked, lambda v: (1, v)),
    "through a method": (lambda x, h: (x * 2, h.get()), Holder),
    "through a property": (lambda x, h: (x * 2, h.held), Holder),
    "through a callee": (lambda x, h: (ignores(x, h.v), h.v), Holder),
    "an argument": (lambda x, v: (ignores(x, v), v, [v], {"v": v}), same),
    "behind a break": (behind_a_break, Holder),
}


def check(compiled, program, *args):
    made, expected = compiled(*args), program(*args)
    assert torch.equal(made[0], expected[0])
    for one, other in zip(made[1:], expected[1:], strict=True):
        assert one is other or (type(one) is type(other) and type(one) in (list, dict) and _equal(one, other))


def _equal(one, other):
    if type(one) is dict:
        return [*one] == [*other] and all(a is b for a, b in zip(one.values(), other.values(), strict=True))
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_handed_on_may_be_anything(name):
    program, make = PROGRAMS[name]
    compiled = minidynamo.compile(program, backend="eager")
    check(compiled, program, X, make(VALUES[0]))
    with no_recompile():
        for value in VALUES[1:]:
            check(compiled, program, X, make(value))


def test_a_global_and_a_closed_over_variable_are_handed_on():
    global HANDED
    compiled = minidynamo.compile(global_of, backend="eager")
    compiled(X, None)
    for HANDED in VALUES:  # noqa: B007
        with no_recompile():
            check(compiled, global_of, X, None)
    value = 0

    def gives(x):
        return x * 2, value

    compiled = minidynamo.compile(gives, backend="eager")
    compiled(X)
    for value in VALUES:  # noqa: B007
        with no_recompile():
            check(compiled, gives, X)


def test_what_is_stored_may_be_anything():
    def stores(x, owner, holder):
        owner.kept = holder.v
        return (x * 2,)

    compiled = minidynamo.compile(stores, backend="eager")
    for value in VALUES:
        owner = Holder(0)
        compiled(X, owner, Holder(value))
        assert owner.kept is value
    assert compiled.stats.compiles == 1


def test_what_was_handed_on_and_is_not_there_is_noticed():
    programs = [
        (lambda x, h: (x * 2, h.v), Holder(1), Holder.__new__(Holder), AttributeError),
        (lambda x, h: (x * 2, h.v), Slots(1), Slots.__new__(Slots), AttributeError),
        (lambda x, d: (x * 2, d["v"]), {"v": 1}, {}, KeyError),
        (lambda x, t: (x * 2, t[1]), (1, 2), (1,), IndexError),
        (lambda x, t: (x * 2, t[-2]), [1, 2], [1], IndexError),
    ]
    for program, there, gone, error in programs:
        compiled = minidynamo.compile(program, backend="eager")
        check(compiled, program, X, there)
        with pytest.raises(error):
            compiled(X, gone)
        check(compiled, program, X, there)


def test_a_value_that_is_written_over_is_handed_on_as_it_was():
    def swaps(x, holder, other):
        old, holder.v = holder.v, other.v
        other.v = old
        return x * 2, old, holder.v

    compiled = minidynamo.compile(swaps, backend="eager")
    for first, second in itertools.pairwise(VALUES):
        one, two = Holder(first), Holder(second)
        made = compiled(X, one, two)
        assert made[1] is first and made[2] is second and one.v is second and two.v is first
    assert compiled.stats.compiles == 1


def test_the_same_object_under_two_names_is_one():
    def adds(x, a, b):
        moved = a.v
        b.v.append(1)
        return x * 2, moved

    compiled = minidynamo.compile(adds, backend="eager")
    for shared in (False, True, False):
        items: list[int] = []
        first, second = Holder(items), Holder(items if shared else [7])
        assert compiled(X, first, second)[1] is items and items == [1] * shared


def test_truth_of_a_function_asks_for_its_class():
    def doubles(x, v):
        return x * 2 if v else x * (1 + (not v))

    compiled = minidynamo.compile(doubles, backend="eager")
    for value in (same, unpacked, None, torch, types, int, Holder, None, same):
        assert torch.equal(compiled(X, value), doubles(X, value))
    assert compiled.stats.compiles == 4  # functions, None, Python modules, classes


def test_a_class_whose_metaclass_gives_truth_is_asked():
    class Empty(type):
        def __bool__(cls):
            return cls.full

    class Box(metaclass=Empty):
        full = True

    def doubles(x, v):
        return x * 2 if v else x

    compiled = minidynamo.compile(doubles, backend="eager")
    for Box.full in (True, False, True):
        assert torch.equal(compiled(X, Box), doubles(X, Box))


def test_a_module_keeps_what_it_gets():
    module = Stores()
    compiled = minidynamo.compile(lambda x, v: module(x, v), backend="eager")
    for value in (1, "a", None, X, [1]):
        assert compiled(X, value)[1] is value and module.last is value


@pytest.mark.parametrize("make", [list, tuple, lambda items: dict(enumerate(items))])
def test_a_loop_that_only_moves_asks_for_the_length_alone(make):
    def collects(x, items):
        return x * 2, [item for item in (items.values() if isinstance(items, dict) else items)]  # noqa: C416

    compiled = minidynamo.compile(collects, backend="eager")
    for value in VALUES:
        check(compiled, collects, X, make([value, 1]))
    assert compiled.stats.compiles == 1
    check(compiled, collects, X, make([1, 2, 3]))
    assert compiled.stats.compiles == 2


def test_what_was_moved_crosses_a_break():
    def program(x, v):
        held = [v, {"v": v}]
        minidynamo.graph_break()
        return x * 2, held

    compiled = minidynamo.compile(program, backend="eager")
    for value in VALUES:
        made = compiled(X, value)[1]
        assert made[0] is value and made[1]["v"] is value
