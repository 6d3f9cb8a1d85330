"""Values put into containers and taken out again may be anything, until they are read."""

# Comprehensions are under test.
# ruff: noqa: C416

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import types
from typing import Any, NamedTuple

import pytest
import torch

import minidynamo
from minidynamo.testing import no_recompile

X = torch.arange(4.0)
VALUES = [1, "a", None, torch.ones(2), torch.ones(3).double(), [1], {}, torch.relu, types, int, len, 2.5, True]
KEPT: list[Any] = []
LAST: dict[str, Any] = {}


class Fields(NamedTuple):
    x: torch.Tensor
    tag: object


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    tag: object


class Tagged(torch.nn.Module):
    def forward(self, x, tag=None, **options):
        return x * 2, tag, options


MODULE = Tagged()


def gives(*args, **kwargs):
    return args, kwargs


def one_by_one(items):
    for item in items:  # noqa: UP028 (the loop is under test)
        yield item


def in_a_loop(x, v):
    pairs = []
    for position, (first, second) in enumerate(zip([v, 1], (2, v))):
        pairs.append((position, first, second))
    return x * 2, pairs


def changed(x, v):
    items = [0, 1]
    items.append(v)
    items.insert(0, v)
    items[1] = v
    table = {"a": 1}
    table["b"] = v
    return x * 2, items, table


def kept_outside(x, v):
    KEPT.append(v)
    LAST["v"] = v
    return x * 2, LAST["v"]


def in_a_closure(x, v):
    held = v

    def inner():
        nonlocal held
        held = [held, v]
        return held

    return x * 2, inner()


def unpacked(x, v):
    first, *rest = (x, v, v)
    return first * 2, rest, [1, *rest]


def fields(x, v):
    plain, record = Fields(x, v), Record(x, v)
    return plain.x * record.x, plain.tag, record.tag


PROGRAMS = {
    "a loop": in_a_loop,
    "methods": changed,
    "containers from outside": kept_outside,
    "a closure": in_a_closure,
    "unpacking": unpacked,
    "fields": fields,
    "a generator": lambda x, v: (x * 2, [item for item in one_by_one([v, 1])]),
    "keywords": lambda x, v: (x * 2, gives(v, 1, k=v)),
    "a partial": lambda x, v: (x * 2, functools.partial(gives, v, k=v)()),
    "a module": lambda x, v: MODULE(x, v, other=v),
    "slices": lambda x, v: (x * 2, (v, 1, v)[1:], [v, 2][:1], (v, 1)[-2]),
    "a chain": lambda x, v: (x * 2, list(itertools.chain([v], (v, 2)))),
    "items of a dict": lambda x, v: (x * 2, [pair for pair in {"a": v, "b": 1}.items()]),
    "a comprehension": lambda x, v: (x * 2, {name: value for name, value in [("a", v)]}),
    "inner containers": lambda x, v: (x * 2, {"a": [v, (v, {"b": v})]}),
}


def same(one, other):
    if isinstance(one, torch.Tensor) or type(one) is not type(other):
        return one is other or (isinstance(one, torch.Tensor) and torch.equal(one, other))
    if isinstance(one, dict):
        return [*one] == [*other] and all(map(same, one.values(), other.values()))
    if isinstance(one, (list, tuple, collections.deque)):
        return len(one) == len(other) and all(map(same, one, other))
    return one is other or one == other


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_put_together_may_be_anything(name):
    program = PROGRAMS[name]
    compiled = minidynamo.compile(program, backend="eager")
    compiled(X, VALUES[0])
    with no_recompile():
        for value in VALUES[1:]:
            assert same(compiled(X, value), program(X, value))


@pytest.mark.parametrize("make", [list, tuple, lambda items: dict(enumerate(items))])
def test_a_loop_that_only_moves_asks_for_the_length_alone(make):
    def collects(x, items):
        return x * 2, [item for item in (items.values() if isinstance(items, dict) else items)]

    compiled = minidynamo.compile(collects, backend="eager")
    for value in VALUES:
        assert same(compiled(X, make([value, 1])), collects(X, make([value, 1])))
    assert compiled.stats.compiles == 1
    assert same(compiled(X, make([1, 2, 3])), collects(X, make([1, 2, 3]))) and compiled.stats.compiles == 2


@pytest.mark.parametrize(
    "program",
    [
        lambda x, v: x * [v, 1][0],
        lambda x, v: x * sum((v, 1)),
        lambda x, v: x * {"a": v}["a"],
        lambda x, v: x * gives(v)[0][0],
        lambda x, v: x * gives(k=v)[1]["k"],
        lambda x, v: x * Record(x, v).tag,
        lambda x, v: x * next(one_by_one([v])),
        lambda x, v: x * max(w for _, w in enumerate([v, 1])),
        lambda x, v: x * (2 if v in [3, v, 5] and v == 3 else 1),
        lambda x, v: x * functools.partial(gives, v)()[0][0],
    ],
)
def test_what_is_read_later_is_guarded(program):
    compiled = minidynamo.compile(program, backend="eager", dynamic=False)
    for value in (2, 3, 2.5, torch.ones(4), torch.full((4,), 5.0)):
        if isinstance(value, torch.Tensor) and "max" in program.__code__.co_names + program.__code__.co_varnames:
            continue
        try:
            expected = program(X, value)
        except (RuntimeError, TypeError) as error:
            with pytest.raises(type(error)):
                compiled(X, value)
            continue
        assert torch.equal(compiled(X, value), expected)


def test_a_value_that_was_moved_and_then_used_is_the_same_one():
    def uses(x, v):
        items = [v]
        v.add_(1)
        return x * items[0], items[0] is v, items

    compiled = minidynamo.compile(uses, backend="eager")
    for _ in range(2):
        mine, other = torch.ones(4), torch.ones(4)
        made, expected = compiled(X, mine), uses(X, other)
        assert torch.equal(made[0], expected[0]) and made[1] and made[2][0] is mine and torch.equal(mine, other)


def test_what_was_moved_crosses_a_break():
    def program(x, v):
        held = [v, {"v": v}]
        minidynamo.graph_break()
        return x * 2, held

    compiled = minidynamo.compile(program, backend="eager")
    for value in VALUES:
        made = compiled(X, value)[1]
        assert made[0] is value and made[1]["v"] is value
