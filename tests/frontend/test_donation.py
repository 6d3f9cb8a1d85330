"""Tests of minidynamo/frontend/donation.py."""

from __future__ import annotations

import functools

import pytest
import torch

import minidynamo
from minidynamo.compat import MODULE_CALL
from minidynamo.errors import ArgumentError
from minidynamo.frontend.donation import donated_names, steal, stolen_arguments
from minidynamo.guards.source import Item, Local


class Sum(torch.nn.Module):
    def forward(self, x, xs):
        return x + xs[0]


def total(xs, y):
    return xs[0] + y


def test_marks_add_up_and_the_target_stays_itself():
    def f(xs, ys):
        return xs[0] + ys[0]

    assert steal(f, ["xs"]) is f
    assert donated_names(f) == {"xs"}
    steal(f, ("ys",))
    assert donated_names(f) == {"xs", "ys"}
    xs, ys = [torch.ones(1)], [torch.ones(1)]
    f(xs, ys)
    assert len(xs) == len(ys) == 1  # eagerly, the list is unchanged
    minidynamo.compile(f, backend="eager")(xs, ys)
    assert xs == ys == []


@pytest.mark.parametrize(
    ("target", "names", "text"),
    [
        (total, ["zs"], "'zs', which is not an argument of total"),
        (Sum(), ["ys"], "'ys', which is not an argument of Sum.forward"),
        (3, ["xs"], "int, which has no arguments"),
        (minidynamo.compile(lambda xs: xs[0] + 1, backend="eager"), ["xs"], "compiled already"),
        (minidynamo.compile(Sum(), backend="eager"), ["xs"], "compiled already"),
    ],
)
def test_what_cannot_be_given_away(target, names, text):
    with pytest.raises(ArgumentError, match=f"MD407(?s:.*){text}"):
        steal(target, names)


def test_names_are_a_collection_of_strings():
    with pytest.raises(ArgumentError, match="MD103"):
        steal(total, "xs")


def test_a_wrapper_has_no_such_argument():
    @functools.wraps(total)
    def wrapper(*args, **kwargs):
        return total(*args, **kwargs)

    with pytest.raises(ArgumentError, match=r"MD103(?s:.*)not an argument"):
        minidynamo.compile(wrapper, steal=("xs",))


def test_marks_count_for_compiling_the_same_function_again():
    def f(xs):
        return xs[0] + 1

    before = minidynamo.compile(f, backend="eager")
    after = minidynamo.compile(steal(f, ["xs"]), backend="eager")
    assert after is not before
    xs = [torch.ones(1)]
    before(xs)
    assert len(xs) == 1
    after(xs)
    assert xs == []


def test_places_of_stolen_arguments():
    xs = [torch.ones(1)]
    assert [*stolen_arguments(total, {"xs"}, {"xs": xs, "y": 1})] == [("xs", Local("xs"), xs)]
    model = Sum()
    call = {"self": model, "args": (1, xs), "kwargs": {}}
    assert [*stolen_arguments(MODULE_CALL, {"xs"}, call)] == [("xs", Item(Local("args"), 1), xs)]
    call = {"self": model, "args": (1,), "kwargs": {"xs": xs}}
    assert [*stolen_arguments(MODULE_CALL, {"xs"}, call)] == [("xs", Item(Local("kwargs"), "xs"), xs)]
    assert [*stolen_arguments(MODULE_CALL, {"xs"}, {"self": model, "args": (1,), "kwargs": {}})] == []
