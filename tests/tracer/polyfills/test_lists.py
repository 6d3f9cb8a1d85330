import collections
import itertools
import math
import operator

import pytest

from minidynamo.tracer.polyfills import lists as twins
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
