import itertools
import operator

import pytest

from minidynamo.tracer.polyfills import itertools as twins
from minidynamo.tracer.records.registry import POLYFILLS
from tests.tracer.polyfills.agreement import NUMBERS, calls_of

LAZY_CASES = {
    itertools.repeat: [(1, 3), (1, 0), (1, {"times": 2})],
    itertools.groupby: [([],)],
    itertools.accumulate: [(NUMBERS,), (NUMBERS, operator.mul), (NUMBERS, {"initial": 100}), ([],)],
    itertools.product: [([1, 2], "ab"), ([1, 2], {"repeat": 2}), ()],
    itertools.combinations: [("abcd", 2), ("ab", 3)],
    itertools.combinations_with_replacement: [("abc", 2)],
    itertools.permutations: [("abc",), ("abc", 2)],
    itertools.pairwise: [(NUMBERS,), ([],)],
    itertools.starmap: [(operator.add, [(1, 2), (3, 4)])],
    itertools.zip_longest: [([1, 2], [3]), ([1], [2, 3], {"fillvalue": 0}), ()],
    itertools.filterfalse: [(None, [0, 1, 2]), (lambda x: x > 3, NUMBERS)],
    itertools.compress: [("abc", [1, 0, 1])],
    itertools.takewhile: [(lambda x: x < 4, NUMBERS)],
    itertools.dropwhile: [(lambda x: x < 4, NUMBERS)],
}


@pytest.mark.parametrize("original, args, kwargs", list(calls_of(LAZY_CASES)))
def test_lazy_twin_gives_the_same_items(original, args, kwargs):
    twin = POLYFILLS[id(original)](*args, **kwargs)
    assert iter(twin) is twin
    assert list(twin) == list(original(*args, **kwargs))


@pytest.mark.parametrize("original, args, kwargs", list(calls_of(LAZY_CASES)))
def test_lazy_twin_takes_items_when_the_original_does(original, args, kwargs):
    def order(function):
        log = []

        def noted(name, items):
            for item in items:
                log.append((name, item))
                yield item

        noting = [noted(n, list(arg)) if isinstance(arg, (list, str)) else arg for n, arg in enumerate(args)]
        for item in function(*noting, **kwargs):
            log.append(("given", item))
        return log

    assert order(POLYFILLS[id(original)]) == order(original)


def test_takewhile_takes_one_item_more():
    source = iter([1, 5, 2])
    assert list(twins.takewhile(lambda x: x < 4, source)) == [1]
    assert next(source) == 2


def test_endless_ones():
    assert list(itertools.islice(twins.count(2, 3), 3)) == [2, 5, 8]
    assert list(itertools.islice(twins.cycle(iter("ab")), 5)) == list("ababa")
    assert list(twins.cycle([])) == []
    assert list(itertools.islice(twins.repeat(7), 2)) == [7, 7]


def test_batched():
    assert list(twins.batched("abcde", 2)) == [("a", "b"), ("c", "d"), ("e",)]


def grouped(function, items, key=None):
    """Returns the groups as seen when each is used in sequence, only in part, or too late."""
    whole = [(name, list(group)) for name, group in function(iter(items), key)]
    first = [(name, next(group)) for name, group in function(iter(items), key)]
    late = [(name, list(group)) for name, group in list(function(iter(items), key))]
    groups = function(iter(items), key)
    held = [next(groups, (None, iter(())))[1] for _ in range(2)]
    return whole, first, late, [list(group) for group in held], list(groups)[:0]


@pytest.mark.parametrize("items", ["", "a", "aab", "aabbbca", "abc"])
def test_groupby(items):
    assert grouped(twins.groupby, items) == grouped(itertools.groupby, items)
    assert grouped(twins.groupby, items, ord) == grouped(itertools.groupby, items, ord)


class Counted:
    """An iterator that records its calls."""

    def __init__(self):
        self.asked = []

    def __iter__(self):
        self.asked.append("iter")
        return self

    def __next__(self):
        self.asked.append("next")
        if len(self.asked) > 4:
            raise StopIteration
        return len(self.asked)


def test_tee_asks_the_source_as_often():
    sources = Counted(), Counted()
    for tee, source in zip((twins.tee, itertools.tee), sources):
        left, right = tee(source)
        assert list(left) == list(right) == [3, 4]
        assert next(left, None) is None
    assert sources[0].asked == sources[1].asked


def test_tee():
    for tee in (twins.tee, itertools.tee):
        left, right = tee(iter("abc"))
        assert next(left) == "a" and list(right) == list("abc") and list(left) == ["b", "c"]
        assert tee([], 0) == () and len(tee([1], 3)) == 3


def test_until():
    for make in (twins.until, iter):
        items = [3, 2, 1, 0]
        assert list(make(items.pop, 2)) == [0, 1] and items == [3]


@pytest.mark.parametrize("call", [lambda: twins.batched("ab", 0), lambda: twins.tee([], -1)])
def test_what_a_twin_cannot_do_it_refuses(call):
    with pytest.raises(NotImplementedError):
        call()
