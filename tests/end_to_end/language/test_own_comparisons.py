"""Values with their own `__eq__`, in containers, next to tensors and below other classes: as in eager."""

import collections
import dataclasses
from typing import ClassVar

import pytest
import torch

import minidynamo


class Unequal:
    __hash__ = None

    def __eq__(self, other):
        return False


class UnequalInt(int):
    __hash__ = int.__hash__

    def __eq__(self, other):
        return False


class UnequalText(str):
    __hash__ = str.__hash__

    def __eq__(self, other):
        return False


class Next(int):
    """An int that equals its successor, except for `!=`."""

    __hash__ = int.__hash__

    def __eq__(self, other):
        return int(self) + 1 == int(other)


class Half(float):
    __hash__ = float.__hash__

    def __eq__(self, other):
        return super().__eq__(other * 2)


class EqualList(list):
    __hash__ = None

    def __eq__(self, other):
        return True


class Tensor(torch.Tensor):
    pass


@dataclasses.dataclass
class Box:
    value: object


def moved(a, b):
    together = [a, b]
    first, second = together
    return [first] == [second]


QUESTIONS = {
    "moved": moved,
    "lists": lambda a, b: [a] == [b],
    "tuples": lambda a, b: (a, 1) != (b, 1),
    "among": lambda a, b: a in [b],
    "counted": lambda a, b: [b].count(a),
    "dicts": lambda a, b: {1: a} == {1: b},
    "fields": lambda a, b: Box(a) == Box(b),
    "equal": lambda a, b: a == b,
    "unequal": lambda a, b: a != b,
    "by name": lambda a, b: (a.__ne__(b), a.__eq__(b)),
    "sets": lambda a, b: (len({a, b}), a in {b}),
    "keys": lambda a, b: (len({a: 1, b: 2}), {a: 1}.get(b), {(a, 1): 1}.get((b, 1))),
    "tensors": lambda a, b: (torch.is_tensor(a), torch.is_tensor(b)),
}
NAN, PAIR = float("nan"), torch.tensor([1.0, 2.0])


def twice(make):
    one, other = make(), make()
    return [(one, other), (one, one), (other, one)]


CALLS = {
    "objects": twice(Unequal),
    "one object first": twice(Unequal)[1:],
    "ints": twice(lambda: UnequalInt(3)),
    "texts": twice(lambda: UnequalText("a")),
    "not a number": [(NAN, NAN), (NAN, float("nan")), (NAN, PAIR), (PAIR, NAN), (NAN, Unequal()), (NAN, UnequalInt(1))],
    "the next": [(Next(1), Next(1)), (Next(1), Next(2)), (Next(1), 2), (2, Next(1)), (2, Next(2))],
    "the half": [(Half(1.0), Half(1.0)), (Half(2.0), 1.0), (1.0, Half(2.0))],
    "a list": [(PAIR, EqualList([1])), (EqualList([1]), PAIR)],
    "tensors": [(PAIR.as_subclass(Tensor), 1), (torch.nn.Parameter(PAIR), 1)],
}


def answer(function, *args):
    try:
        return repr(function(*args))
    except (RuntimeError, TypeError, ValueError) as error:
        return type(error)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("name", CALLS)
def test_same_as_eager(name, question):
    ask = QUESTIONS[question]
    compiled = minidynamo.compile(lambda a, b: ask(a, b), backend="eager")
    for args in CALLS[name]:
        assert answer(compiled, *args) == answer(ask, *args), args


class Noted:
    """A key that counts its comparisons."""

    asked: ClassVar = []

    def __init__(self, value, name=""):
        self.value, self.name = value, name

    def __hash__(self):
        self.asked.append(("hash", self.value, self.name))
        return self.value % 2

    def __eq__(self, other):
        self.asked.append(("eq", self.value, self.name, other.value, other.name))
        return self.value == other.value


def noted(count, name=""):
    return [Noted(value, name) for value in range(count)]


COUNTED = {
    "set": lambda: len(set(noted(4))),
    "set literal": lambda: len({Noted(1), Noted(3), Noted(1, "b")}),
    "union": lambda: len(set(noted(3)) | set(noted(4, "b"))),
    "difference": lambda: len(set(noted(3)) - set(noted(4, "b"))),
    "equal sets": lambda: set(noted(4)) == set(noted(4, "b")),
    "set.update": lambda: set(noted(3)).update(noted(3, "b")),
    "dict literal": lambda: len({Noted(1): 1, Noted(3): 2, Noted(1, "b"): 3}),
    "dict.update": lambda: {Noted(1): 1}.update({Noted(3): 2, Noted(1, "b"): 3}),
    "equal dicts": lambda: {Noted(1): 1, Noted(3): 2} == {Noted(3, "b"): 2, Noted(1, "b"): 1},
    "dict.fromkeys": lambda: len(dict.fromkeys({Noted(1): 1, Noted(3): 2})),
    "tuples": lambda: {(Noted(1), 1): 2}[Noted(1, "b"), 1],
    "OrderedDict": lambda: collections.OrderedDict((key, 1) for key in noted(3)).move_to_end(Noted(1)),
    "lists": lambda: (noted(3) == noted(3, "b"), Noted(1, "b") in noted(2)),
}


@pytest.mark.parametrize("name", COUNTED)
def test_comparisons_that_can_be_counted_are_as_many_as_in_eager(name):
    def program(x):
        Noted.asked.clear()
        return x + 1, COUNTED[name](), list(Noted.asked)

    compiled = minidynamo.compile(program, backend="eager")
    for _ in range(2):
        assert compiled(PAIR)[1:] == program(PAIR)[1:]


class Drawn:
    def __hash__(self):
        return int(torch.rand(2).shape[0])

    def __eq__(self, other):
        return True


def test_a_hash_that_draws_random_numbers_draws_them_once():
    program = lambda x: (x + len({Drawn(): 1} | {Drawn(): 2}), torch.rand(1))

    def drawn(function):
        torch.manual_seed(0)
        return function(PAIR)

    compiled = minidynamo.compile(program, backend="eager")
    torch.testing.assert_close(drawn(compiled), drawn(program), rtol=0, atol=0)
