import collections
import copy
import math
import operator

import pytest

from minidynamo.tracer import polyfills, registry
from minidynamo.tracer.registry import POLYFILLS

NUMBERS = [3, 1, 4, 1, 5, 9, 2, 6]
WORDS = ["pear", "fig", "apple", "date"]

# original, then argument tuples on which the twin must agree; a dict at the end holds keyword arguments.
CASES = {
    any: [([],), ([0, ""],), ([0, 2],)],
    all: [([],), ([1, 0],), ([1, 2],)],
    sum: [([],), (NUMBERS,), (NUMBERS, 10), ([[1], [2]], []), ([0.1] * 10,), ([1, 0.5, 2j],), ([], {"start": 4})],
    min: [(NUMBERS,), (3, 1, 2), (WORDS, {"key": len}), ([], {"default": 7}), ({3, 1},)],
    max: [(NUMBERS,), (3, 1, 2), (WORDS, {"key": len}), ([], {"default": None}), ([1, 1.0],)],
    sorted: [(NUMBERS,), (WORDS, {"key": len, "reverse": True}), ({3, 1, 2},)],
    list.index: [([1, 2, 1], 1), ([1, 2, 1], 1, 1), ([1, 2, 1], 1, -1), ([1, 2, 3], 2, 0, 2)],
    list.count: [([1, 2, 1], 1), ([], 1), ([math.nan], math.nan)],
    list.__contains__: [([1, 2], 2), ([1, 2], 3), ([math.nan], math.nan)],
    dict.get: [({1: 2}, 1), ({1: 2}, 3), ({1: 2}, 3, 4)],
    set.union: [({1, 2}, [2, 3], (4,)), (set(),)],
    frozenset.union: [(frozenset({1}), [2])],
    set.difference: [({1, 2, 3}, [2], {3})],
    set.intersection: [({1, 2, 3}, [2, 3], {3, 4})],
    set.symmetric_difference: [({1, 2, 3}, [2, 4])],
    set.issubset: [({1, 2}, [1, 2, 3]), ({1, 2}, [1])],
    set.issuperset: [({1, 2}, [1]), ({1, 2}, [3])],
    set.isdisjoint: [({1, 2}, [3]), ({1, 2}, [2])],
}

# Methods that change their first argument: what must agree is that argument and the result.
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
    dict.update: [({1: 2}, {3: 4}), ({1: 2}, [(1, 5)], {"a": 3}), ({},)],
    dict.setdefault: [({1: 2}, 1, 3), ({1: 2}, 2, 3), ({}, 1)],
    dict.__ior__: [({1: 2}, {3: 4})],
    set.update: [({1}, [2], {3})],
    set.difference_update: [({1, 2, 3}, [1], {2})],
    set.intersection_update: [({1, 2, 3}, [1, 2], {2})],
    set.symmetric_difference_update: [({1, 2}, [2, 3])],
}


def calls_of(cases):
    for original, calls in cases.items():
        for number, call in enumerate(calls):
            kwargs = call[-1] if call and isinstance(call[-1], dict) and all(type(k) is str for k in call[-1]) else {}
            args = call[:-1] if kwargs else call
            yield pytest.param(original, args, kwargs, id=f"{original.__qualname__}-{number}")


@pytest.mark.parametrize("original, args, kwargs", list(calls_of(CASES)))
def test_twin_gives_what_the_original_gives(original, args, kwargs):
    expected = original(*args, **kwargs)
    actual = POLYFILLS[id(original)](*args, **kwargs)
    assert type(actual) is type(expected) and actual == expected


@pytest.mark.parametrize("original, args, kwargs", list(calls_of(CHANGING_CASES)))
def test_changing_twin_leaves_what_the_original_leaves(original, args, kwargs):
    for_original, for_twin = copy.deepcopy(args), copy.deepcopy(args)
    expected = original(*for_original, **kwargs)
    actual = POLYFILLS[id(original)](*for_twin, **kwargs)
    assert actual == expected
    assert for_twin == for_original
    assert (actual is for_twin[0]) == (expected is for_original[0])


def test_class_methods():
    assert registry.CLASS_METHOD_POLYFILLS[dict, "fromkeys"]("ab", 0) == dict.fromkeys("ab", 0)


def test_extending_a_list_by_itself_ends():
    xs = [1, 2]
    polyfills.list_extend(xs, xs)
    assert xs == [1, 2, 1, 2]


@pytest.mark.parametrize("left, right", [([1, 2], [1, 3]), ([1], [1, 2]), ([2], [1, 2]), ([1, 2], [1, 2]), ([], [])])
@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
def test_sequence_compare(compare, left, right):
    assert polyfills.sequence_compare(compare, left, right) is compare(left, right)


def test_equality_of_containers():
    assert polyfills.sequence_equal([1, math.nan], [1, math.nan]) is ([1, math.nan] == [1, math.nan])
    assert polyfills.dict_equal({1: 2, 3: 4}, {3: 4, 1: 2})
    assert not polyfills.dict_equal({1: 2}, {1: 3})
    assert not polyfills.ordered_dict_equal({1: 2, 3: 4}, {3: 4, 1: 2})
    assert polyfills.set_equal({1, 2}, {2, 1}) and not polyfills.set_equal({1}, {2})


def test_what_a_twin_cannot_do_it_refuses():
    with pytest.raises(NotImplementedError):
        polyfills.sum_([], "")


@pytest.mark.parametrize("call", [lambda: polyfills.min_([]), lambda: polyfills.sequence_index([1], 2)])
def test_twins_raise_what_their_originals_do(call):
    with pytest.raises(ValueError):
        call()
