"""Tests of minidynamo/strides.py against all places, one by one."""

import itertools

import pytest

from minidynamo.strides import may_meet, reach


def places(start, dims):
    steps = (range(0, stride * size, stride) for stride, size in dims)
    return {start + sum(chosen) for chosen in itertools.product(*steps)}


ROWS = [(64, 4), (1, 8)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, ROWS), (256, ROWS)),  # behind one another
        ((0, ROWS), (8, ROWS)),  # side by side
        ((0, ROWS), (7, ROWS)),
        ((0, [(128, 4), (1, 64)]), (64, [(128, 4), (1, 64)])),  # every second row
        ((0, [(2, 8)]), (1, [(2, 8)])),
        ((0, [(2, 8)]), (4, [(2, 8)])),
        ((3, []), (0, [(3, 5)])),
        ((3, []), (3, [])),
    ],
)
def test_sets_of_places_that_are_told_apart(one, other):
    meet = not places(*one).isdisjoint(places(*other))
    assert may_meet(*one, *other) == may_meet(*other, *one) == meet


def test_the_reach_of_dimensions():
    assert reach(ROWS) == max(places(0, ROWS)) and reach([]) == 0
