import bisect
import collections
import heapq
import random

import pytest

from minidynamo.tracer.polyfills import collections as twins
from minidynamo.tracer.registry import CLASS_METHOD_POLYFILLS

BISECTIONS = (bisect.bisect_left, bisect.bisect_right, bisect.insort_left, bisect.insort_right)


@pytest.mark.parametrize("seed", range(20))
def test_heaps_are_laid_out_alike(seed):
    chance = random.Random(seed)
    items = [(chance.randint(0, 9), chance.random()) for _ in range(chance.randint(0, 30))]
    mine, real = list(items), list(items)
    twins.heapify(mine)
    heapq.heapify(real)
    assert mine == real
    for _ in range(40):
        item = (chance.randint(0, 9), chance.random())
        name = chance.choice(["heappush", "heappop", "heapreplace", "heappushpop"])
        if not real and name in ("heappop", "heapreplace"):
            with pytest.raises(IndexError, match="index out of range"):
                getattr(twins, name)(mine, *([item] if name == "heapreplace" else []))
            continue
        args = [] if name == "heappop" else [item]
        assert getattr(twins, name)(mine, *args) == getattr(heapq, name)(real, *args)
        assert mine == real


@pytest.mark.parametrize("n", [-1, 0, 1, 3, 100])
@pytest.mark.parametrize("key", [None, lambda item: -item % 3])
def test_largest_and_smallest(n, key):
    items = [5, 2, 9, 2, 7, 5]
    assert twins.nlargest(n, iter(items), key) == heapq.nlargest(n, items, key)
    assert twins.nsmallest(n, iter(items), key) == heapq.nsmallest(n, items, key)


@pytest.mark.parametrize("function", BISECTIONS)
def test_bisection(function):
    twin = getattr(twins, function.__name__)
    for x in range(-1, 7):
        for bounds in ({}, {"lo": 1}, {"lo": 2, "hi": 4}, {"key": lambda item: item}):
            mine, real = [0, 1, 1, 3, 3, 3, 5], [0, 1, 1, 3, 3, 3, 5]
            assert twin(mine, x, **bounds) == function(real, x, **bounds)
            assert mine == real
    with pytest.raises(ValueError, match="lo must be non-negative"):
        twin([1], 1, -1)


def test_ordered_dict_fromkeys():
    twin = CLASS_METHOD_POLYFILLS[collections.OrderedDict, "fromkeys"]
    for args in (("abca",), ("ab", 1), ([],)):
        assert twin(*args) == collections.OrderedDict.fromkeys(*args)
        assert type(twin(*args)) is collections.OrderedDict
