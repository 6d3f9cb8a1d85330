import bisect
import heapq
import random

import pytest

from minidynamo.tracer.polyfills import collections as twins

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


class Item:
    """A number that records its comparisons."""

    def __init__(self, value, compared):
        self.value = value
        self.compared = compared

    def __lt__(self, other):
        self.compared.append((self.value, other.value))
        return self.value < other.value


def test_heaps_with_the_largest_at_the_top_compare_what_the_library_compares():
    originals = [
        getattr(heapq, "_" + name, None) or getattr(heapq, name) for name in ("heapify_max", "heapreplace_max")
    ]
    found = []
    for heapify, heapreplace in (originals, (twins.heapify_max, twins.heapreplace_max)):
        compared = []
        heap = [Item(value, compared) for value in (5, 2, 9, 2, 7, 5, 1)]
        heapify(heap)
        given = heapreplace(heap, Item(4, compared))
        found.append((given.value, [item.value for item in heap], compared))
    assert found[0] == found[1]


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
