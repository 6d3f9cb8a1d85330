"""Functions that read all items of an object of the user call `__iter__`, `__next__` and `__getitem__` as eager does.

Calls of `__len__` and `__length_hint__` by C are not repeated.
"""

import collections
import functools
import itertools

import pytest
import torch

import minidynamo

ASKED: list[str] = []


class Sized:
    def __iter__(self):
        ASKED.append("iter")
        return iter([3, 1, 2])

    def __len__(self):
        return 3


class Hinting:
    def __init__(self):
        self.left = 3

    def __iter__(self):
        ASKED.append("iter")
        return self

    def __next__(self):
        ASKED.append("next")
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left

    def __length_hint__(self):
        return NotImplemented


class Indexed:
    def __getitem__(self, position):
        ASKED.append(f"get {position}")
        if not 0 <= position < 3:
            raise IndexError
        return [3, 1, 2][position]

    def __len__(self):
        return 3


class OwnList(list):
    def __len__(self):
        return list.__len__(self)


def extended(make):
    items = [0]
    items.extend(make())
    items += make()
    return items


def in_a_deque(make):
    items = collections.deque(make())
    items.extend(make())
    return items


def intersected(make):
    items = {0, 1}
    items.intersection_update(make())
    return items, {1}.intersection(make()), {1}.issuperset(make()), {1}.issubset(make()), {1}.isdisjoint(make())


def taken_one_by_one(make):
    lazy = itertools.accumulate(make()), itertools.takewhile(bool, make()), itertools.pairwise(make())
    return [[*each] for each in lazy], functools.reduce(lambda a, b: a + b, make()), max(make(), key=str)


def noted(item):
    ASKED.append(f"key of {item}")
    return -item


def mapped(make):
    return [*map(str, make())], dict.fromkeys(make()), [item for item in make()], dict(zip(make(), make()))  # noqa: C416


PROGRAMS = {
    "list": lambda make: list(make()),
    "tuple": lambda make: tuple(make()),
    "display": lambda make: [0, *make()],
    "arguments": lambda make: max(*make()),
    "sorted": lambda make: sorted(make()),
    "sorted by": lambda make: sorted(make(), key=lambda item: -item),
    "product": lambda make: list(itertools.product(make(), [1])),
    "extended": extended,
    "deque": in_a_deque,
    "mapped": mapped,
    "folds": lambda make: (sum(make()), max(make()), min(make()), any(make()), all(make()), list(enumerate(make()))),
    "sets": lambda make: (sorted(set(make())), sorted({0}.union(make()))),
    "joined": lambda make: ",".join(make()),
    "intersected": intersected,
    "one by one": taken_one_by_one,
    "ranked": lambda make: (max(make(), key=noted), min(make(), key=noted), sorted(make(), key=noted)),
    "iterator": lambda make: (list(iter(make())), tuple(iter(make())), [*iter(make())], sorted(iter(make()))),
    "starred behind another": lambda make: (lambda: [(a, b) for a, *b in [iter(make())]])(),
    "starred": lambda make: (lambda: [(b, *c) for a, b, *c in [make()]])(),
    "unpacked": lambda make: (lambda a, b, c: (c, b, a))(*make()),
    "names": lambda make: [a for a, b, c in [make()]],
}
MAKERS = [Sized, Hinting, lambda: OwnList([2, 1, 3]), Indexed]


def run(function, make):
    ASKED.clear()
    try:
        return repr(function(make)), [*ASKED]
    except Exception as error:
        return type(error), str(error), [*ASKED]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_items_are_asked_for_as_in_eager(name, make):
    compiled = minidynamo.compile(lambda x, make: (x + 1, PROGRAMS[name](make)), backend="eager")
    x = torch.ones(2)
    for _ in range(2):
        assert run(lambda make: compiled(x, make)[1], make) == run(PROGRAMS[name], make)
