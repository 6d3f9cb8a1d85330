import copy
import dataclasses
import enum
import functools
import itertools
import math
import operator

import pytest
import torch

from minidynamo.tracer import library_polyfills as twins
from minidynamo.tracer.polyfills import CLASS_METHODS
from minidynamo.tracer.registry import POLYFILLS
from tests.tracer.test_polyfills import NUMBERS, calls_of

CASES = {
    math.prod: [([],), (NUMBERS,), ([2, 3], {"start": 5})],
    functools.reduce: [(operator.sub, NUMBERS), (operator.sub, NUMBERS, 100), (operator.add, [], 1)],
    copy.copy: [([1],), ({1: 2},), ((1, 2),), ("a",)],
}

LAZY_CASES = {
    itertools.chain: [([1], (2, 3)), ()],
    itertools.repeat: [(1, 3), (1, 0)],
    itertools.islice: [(NUMBERS, 3), (NUMBERS, 2, 5), (NUMBERS, 1, None, 2), (NUMBERS, 0, 7, 3), (NUMBERS, 20)],
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


@pytest.mark.parametrize("original, args, kwargs", list(calls_of(CASES)))
def test_twin_gives_what_the_original_gives(original, args, kwargs):
    expected = original(*args, **kwargs)
    actual = POLYFILLS[id(original)](*args, **kwargs)
    assert type(actual) is type(expected) and actual == expected


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


def test_islice_takes_no_item_more_than_asked_for():
    source = iter(NUMBERS)
    assert list(twins.islice(source, 2)) == NUMBERS[:2]
    assert next(source) == NUMBERS[2]


def test_takewhile_takes_one_item_more():
    source = iter([1, 5, 2])
    assert list(twins.takewhile(lambda x: x < 4, source)) == [1]
    assert next(source) == 2


@pytest.mark.parametrize("items", [3, (2, 0)])
def test_itemgetter(items):
    keys = items if isinstance(items, tuple) else (items,)
    assert twins.itemgetter(*keys)(NUMBERS) == operator.itemgetter(*keys)(NUMBERS)


def test_endless_ones():
    assert list(itertools.islice(twins.count(2, 3), 3)) == [2, 5, 8]
    assert list(itertools.islice(twins.cycle(iter("ab")), 5)) == list("ababa")
    assert list(twins.cycle([])) == []
    assert list(itertools.islice(twins.repeat(7), 2)) == [7, 7]


def test_chain_from_iterable():
    twin = CLASS_METHODS[itertools.chain, "from_iterable"]
    assert list(twin([[1], [2, 3]])) == [1, 2, 3]
    assert list(twin(iter([[1], iter([2, 3])]))) == [1, 2, 3]


def test_batched():
    assert list(twins.batched("abcde", 2)) == [("a", "b"), ("c", "d"), ("e",)]


@dataclasses.dataclass
class Point:
    x: int
    y: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Derived(Point):
    z: int = dataclasses.field(default=0, init=False)


def test_dataclasses():
    point = Point(1, [Point(2), {"a": (3, None)}])
    assert twins.dataclass_replace(point, x=5) == dataclasses.replace(point, x=5)
    assert twins.dataclass_asdict(point) == dataclasses.asdict(point)
    assert twins.field_names(Derived) == ("x", "y", "z") and twins.init_field_names(Derived) is None
    with pytest.raises(NotImplementedError):
        twins.dataclass_replace(Derived(1), x=2)
    with pytest.raises(NotImplementedError):
        twins.dataclass_asdict(Point(1, object()))


def test_enum_and_torch():
    color = enum.Enum("color", ["RED", "BLUE"])
    assert list(twins.enum_iter(color)) == list(color)
    assert twins.numel(torch.zeros(2, 3)) == 6
    assert twins.torch_assert(True, "") is None
    with pytest.raises(NotImplementedError):
        twins.torch_assert(False, "")


@pytest.mark.parametrize(
    "call",
    [
        lambda: twins.reduce(operator.add, []),
        lambda: twins.islice([1], -1),
        lambda: twins.batched("ab", 0),
        lambda: twins.copy_copy(object()),
    ],
)
def test_what_a_twin_cannot_do_it_refuses(call):
    with pytest.raises(NotImplementedError):
        call()
