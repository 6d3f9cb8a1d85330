"""Passes over columns: values that are computed, recomputed, or kept."""

import pytest
import torch

from minidynamo.codegen.ir.loops import Loops
from minidynamo.codegen.scheduling.domain import domain_of, place_all
from minidynamo.codegen.scheduling.row_passes import find_passes
from tests.codegen.graphs import lower


def passes(function, *args, needed=frozenset(), may_keep=True, reads_back=True):
    nodes = [n for n in lower(function, *args).nodes if isinstance(n, Loops)]
    domain = domain_of(nodes)
    placed = place_all(nodes, domain)
    assert placed is not None
    return find_passes(placed, domain, frozenset(needed), frozenset(), may_keep=may_keep, reads_back=reads_back)


X = torch.ones(4, 6)


def test_softmax_has_three_passes_and_keeps_the_exponentials():
    found = passes(lambda x: x.softmax(1), X, needed={"_softmax"})
    assert found.count == 3
    assert found.kept == {"_softmax_map"}
    assert dict(found.first) == {"_softmax_max": 0, "_softmax_map": 1, "_softmax_sum": 1, "_softmax": 2}


def test_cheap_values_are_made_again():
    found = passes(lambda x: (y := x + 1) / y.sum(1, keepdim=True), X, needed={"div"})
    assert found.kept == frozenset()
    assert found.recomputed["add"] == {1}


def test_nothing_is_kept_where_columns_are_outside():
    found = passes(lambda x: x.softmax(1), X, needed={"_softmax"}, may_keep=False)
    assert found.kept == frozenset() and found.recomputed["_softmax_map"] == {2}


LONG = torch.ones(2, 20_000)


def test_what_is_too_long_to_be_kept_lies_in_a_result_until_that_is_stored():
    found = passes(lambda x: x.softmax(1), LONG, needed={"_softmax"})
    assert found.kept == frozenset() and found.recomputed["_softmax_map"] == frozenset()
    assert found.stored_in == {"_softmax_map": ("_softmax", {2})}


def test_what_is_a_result_itself_is_read_again():
    found = passes(lambda x: (y := x.exp()) / y.sum(1, keepdim=True), LONG, needed={"exp", "div"})
    assert found.stored_in == {"exp": ("exp", {1})}


def test_a_result_that_may_lie_where_something_is_read_late_has_no_room():
    found = passes(lambda x, y: x.softmax(1) * y, LONG, LONG, needed={"mul"})
    assert found.stored_in == {} and found.recomputed["_softmax_map"] == {2}


@pytest.mark.parametrize(
    ("x", "facts"),
    [(LONG.bfloat16(), {}), (LONG, {"reads_back": False}), (LONG, {"may_keep": False})],
    ids=["other dtype", "nothing is read back", "columns are outside"],
)
def test_values_that_are_made_again_as_no_result_has_room_for_them(x, facts):
    found = passes(lambda x: x.softmax(1), x, needed={"_softmax"}, **facts)
    assert found.stored_in == {} and found.recomputed["_softmax_map"] == {2}


def test_a_result_has_room_for_one_value():
    assert len(passes(lambda x: x.softmax(1).softmax(1), LONG, needed={"_softmax_1"}).stored_in) == 1


def test_values_needed_late_are_made_late():
    found = passes(lambda x: x.sum(1, keepdim=True) * x.exp(), X, needed={"mul"})
    assert found.first["exp"] == found.first["mul"] == 1


def test_row_values_stand_between_passes():
    found = passes(lambda x: x - x.mean(1, keepdim=True), X, needed={"sub"})
    assert found.first["mean_sum"] == 0 and found.first["mean"] == 0 and found.first["sub"] == 1
