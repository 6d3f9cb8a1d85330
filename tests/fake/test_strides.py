"""Tests of minidynamo/fake/strides.py against a list of all addresses."""

import itertools

import pytest

from minidynamo.fake.strides import is_dense, may_meet, reach


def places(start, dims):
    steps = (range(0, stride * size, stride) for stride, size in dims)
    return {start + sum(chosen) for chosen in itertools.product(*steps)}


ROWS = [(64, 4), (1, 8)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, ROWS), (256, ROWS)),  # consecutive
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


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((2, 3), (3, 1)),
        ((2, 3), (1, 2)),
        ((2, 1, 3), (3, 50, 1)),  # the stride of a dimension of one element does not matter
        ((2, 3), (4, 1)),  # with a gap
        ((2, 3), (0, 1)),  # all rows in the same memory
        ((3, 3), (2, 1)),
        ((), ()),
    ],
)
def test_dense_elements_fill_their_places_once_each(shape, strides):
    taken = [
        sum(chosen)
        for chosen in itertools.product(*(range(0, s * n, s) if s else [0] * n for n, s in zip(shape, strides)))
    ]
    assert is_dense(shape, strides) == (sorted(taken) == list(range(len(taken))))
