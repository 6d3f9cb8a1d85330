from __future__ import annotations

import collections
import itertools
import math
import operator
from collections import OrderedDict

import pytest

from minidynamo.tracer.polyfills import containers as twins
from tests.tracer.polyfills.agreement import same_changes, same_results

CASES = {
    list.index: [([1, 2, 1], 1), ([1, 2, 1], 1, 1), ([1, 2, 1], 1, -1), ([1, 2, 3], 2, 0, 2)],
    list.count: [([1, 2, 1], 1), ([], 1), ([math.nan], math.nan)],
    list.__contains__: [([1, 2], 2), ([1, 2], 3), ([math.nan], math.nan)],
    slice.indices: [
        (slice(start, stop, step), length)
        for start, stop, step in itertools.product((None, -9, -2, 0, 3, 9), (None, -9, -1, 0, 4, 9), (None, -3, -1, 2))
        for length in (0, 1, 5)
    ],
}

CHANGING_CASES = {
    list.extend: [([1], [2, 3]), ([1], "ab")],
    list.__iadd__: [([1], (2,))],
    list.remove: [([1, 2, 1], 1)],
    collections.deque.extendleft: [(collections.deque([1]), [2, 3])],
    collections.deque.rotate: [
        (collections.deque([1, 2, 3]), 1),
        (collections.deque([1, 2, 3]), -1),
        (collections.deque(),),
    ],
}


test_twin_gives_what_the_original_gives = same_results(CASES)
test_changing_twin_leaves_what_the_original_leaves = same_changes(CHANGING_CASES)


def test_extending_a_list_by_itself_ends():
    xs = [1, 2]
    twins.list_extend(xs, xs)
    assert xs == [1, 2, 1, 2]


@pytest.mark.parametrize("left, right", [([1, 2], [1, 3]), ([1], [1, 2]), ([2], [1, 2]), ([1, 2], [1, 2]), ([], [])])
@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
def test_sequence_compare(compare, left, right):
    assert twins.sequence_compare(compare, left, right) is compare(left, right)


def test_equality():
    assert twins.sequence_equal([1, math.nan], [1, math.nan]) is ([1, math.nan] == [1, math.nan])


def test_twin_raises_what_its_original_does():
    with pytest.raises(ValueError):
        twins.sequence_index([1], 2)


class Ordered(OrderedDict):
    pass


def test_twins_of_subclasses_leave_and_return_what_the_originals_do():
    for method, twin, args in (
        (OrderedDict.update, twins.dict_update, ({3: 4},)),
        (OrderedDict.update, twins.dict_update, ([(1, 5)],)),
        (OrderedDict.update, twins.dict_update, ()),
        (OrderedDict.setdefault, twins.ordered_setdefault, (1, 3)),
        (OrderedDict.setdefault, twins.ordered_setdefault, (2, 3)),
        (OrderedDict.setdefault, twins.ordered_setdefault, (2,)),
        (OrderedDict.__ior__, twins.ordered_ior, ({3: 4},)),
        (OrderedDict.copy, twins.ordered_copy, ()),
    ):
        for_original, for_twin = Ordered({1: 2}), Ordered({1: 2})
        expected, actual = method(for_original, *args), twin(for_twin, *args)
        assert (actual, type(actual)) == (expected, type(expected))
        assert for_twin == for_original


def test_class_methods():
    for cls, twin in ((dict, twins.dict_fromkeys), (OrderedDict, twins.ordered_dict_fromkeys)):
        for args in (("abca",), ("ab", 1), ([],)):
            assert twin(cls, *args) == cls.fromkeys(*args)
            assert type(twin(cls, *args)) is cls


def test_equality_of_dicts():
    assert twins.dict_equal({1: 2, 3: 4}, {3: 4, 1: 2})
    assert not twins.dict_equal({1: 2}, {1: 3})
    assert not twins.ordered_dict_equal({1: 2, 3: 4}, {3: 4, 1: 2})


OF_SETS = {
    set.union: [({1, 2}, [2, 3], (4,)), (set(),)],
    frozenset.union: [(frozenset({1}), [2])],
    set.difference: [({1, 2, 3}, [2], {3})],
    set.intersection: [({1, 2, 3}, [2, 3], {3, 4})],
    set.symmetric_difference: [({1, 2, 3}, [2, 4])],
    set.issubset: [({1, 2}, [1, 2, 3]), ({1, 2}, [1])],
    set.issuperset: [({1, 2}, [1]), ({1, 2}, [3])],
    set.isdisjoint: [({1, 2}, [3]), ({1, 2}, [2])],
}

CHANGING_SETS = {
    set.update: [({1}, [2], {3})],
    set.difference_update: [({1, 2, 3}, [1], {2})],
    set.intersection_update: [({1, 2, 3}, [1, 2], {2})],
    set.symmetric_difference_update: [({1, 2}, [2, 3])],
}


test_twin_of_a_set_gives_what_the_original_gives = same_results(OF_SETS)
test_changing_twin_of_a_set_leaves_what_the_original_leaves = same_changes(CHANGING_SETS)


def test_equality_of_sets():
    assert twins.set_equal({1, 2}, {2, 1}) and not twins.set_equal({1}, {2})
