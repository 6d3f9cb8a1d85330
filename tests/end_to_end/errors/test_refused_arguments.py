"""Arguments that Python refuses in operators, syntax and calls are refused; accepted tensors give eager's results."""

from __future__ import annotations

import collections
import enum
import functools
import itertools

import pytest
import torch

from minidynamo.testing import assert_same_as_eager


class Text(str):
    pass


class Defaults(collections.defaultdict):
    pass


class Keys:
    def keys(self):
        return ["a", "b"]

    def __getitem__(self, key):
        return key * 2


class OwnKeys:
    def __init__(self):
        self.keys = lambda: ["a"]

    def __getitem__(self, key):
        return key * 3


class Level(enum.IntEnum):
    LOW = 1


class Name(str, enum.Enum):  # noqa: UP042 - a StrEnum has another __str__
    A = "a"


class NoIterator:
    def __iter__(self):
        return 5


def named(**names):
    return sorted(names)


REFUSED = {
    "pairs as a mapping": lambda x: {**[[1, 2]]},
    "pairs as keywords": lambda x: named(**[["a", 2]]),
    "an iterator as a mapping": lambda x: {**zip("ab", "cd")},
    "items as a mapping": lambda x: {**{1: 2}.items()},
    "None as a mapping": lambda x: {**None},
    "a method of sets for a tuple": lambda x: set.isdisjoint((1,), ()),
    "a method of lists for keys": lambda x: list.count({1: 2}.keys(), 1),
    "a method of ordered dicts for a dict": lambda x: collections.OrderedDict.move_to_end({1: 2}, 1),
    "a method of tensors for a number": lambda x: torch.Tensor.add(1, x),
    "a number as a function": lambda x: functools.partial(5, 1),
    "a slice as a function": lambda x: functools.partial(slice(0, 2)),
    "a number as a factory": lambda x: collections.defaultdict(3),
    "pairs as a factory": lambda x: Defaults(list).__init__([[1, 2]]),
    "no iterator": lambda x: iter(NoIterator()),
    "a loop over no iterator": lambda x: [item * 2 for item in NoIterator()],
    "pairs of no iterator": lambda x: itertools.pairwise(NoIterator()),
}
TAKEN = {
    "a tensor in a text": lambda x: ("%r" % (x * 1), "%s" % (x + 1), b"%a" % x, Text("%s") % x, bytearray(b"%a") % x),
    "factories": lambda x: (collections.defaultdict(None, a=1), Defaults(int)["q"], Defaults(), Defaults(Keys)),
    "an object with keys": lambda x: ({**Keys()}, named(**Keys()), {**OwnKeys()}),
    "methods of bases": lambda x: (
        (int.__add__(True, 2), dict.get(collections.OrderedDict(a=1), "a"), tuple.index(torch.Size([1, 2]), 2)),
        (torch.Tensor.add(torch.nn.Parameter(x), 1), BaseException.__str__(ValueError(3)), int.bit_length(x.shape[0])),
    ),
    "texts as bases have them": lambda x: (
        (int.__repr__(True), int.__repr__(Level.LOW), int.__str__(Level.LOW), int.__format__(Level.LOW, "03d")),
        (str.__str__(Name.A), str.__repr__(Name.A), object.__repr__(3)[:11], object.__repr__(torch.float32)[:10]),
    ),
}


@pytest.mark.parametrize("name", [*REFUSED, *TAKEN])
def test_same_as_eager(name):
    ask = (REFUSED | TAKEN)[name]

    def caught(x):
        try:
            return x * 2, ask(x)
        except TypeError as error:
            return x + 1, str(error)

    def raised(x):
        return x * 2, ask(x)

    if name in REFUSED:
        with pytest.raises(TypeError):
            ask(torch.ones(2))
    for program in caught, raised:
        assert_same_as_eager(program, lambda: torch.ones(2), lambda: torch.zeros(2), calls=2)


def test_texts_with_tensors_filled_in_place():
    def fill(x, text):
        text %= x
        return x + 1, text

    assert_same_as_eager(fill, lambda: (torch.ones(2), "<%s>"), lambda: (torch.zeros(2), "<%s>"))
