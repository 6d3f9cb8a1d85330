import collections
import contextlib
import dataclasses
import typing

import pytest
import torch

from minidynamo.testing import assert_same_as_eager
from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    n: int = 1


class Point(typing.NamedTuple):
    x: torch.Tensor
    y: int = 2

    def total(self):
        return self.x + self.y


class Log(list):
    def __init__(self, tag, items=()):
        super().__init__(items)
        self.tag = tag

    def append(self, item):
        super().append((self.tag, item))


@programs(graphs=None, breaks=None)
class Cases:
    def a_module_is_made(x):
        torch.manual_seed(0)
        return torch.nn.Linear(4, 2)(x)


class HandsArgumentsOn:
    def __new__(cls, x):
        return super().__new__(cls, x)

    def __init__(self, x):
        self.x = x


class Plain:
    pass


class Counter(int):
    pass


class Refusal(ValueError):
    pass


class Finalized:
    def __del__(self):
        print("gone")


MADE_WITHOUT_CALLS = {
    "what its class lets __init__ take": lambda: object.__new__(Frozen, 1),
    "an exception by a base": lambda: Exception.__new__(Refusal, 1).args,
    "a namedtuple": lambda: tuple.__new__(Point, (1, 2)),
    "a number of another class": lambda: int.__new__(Counter, 3) + 0,
    "with __del__": lambda: object.__new__(Finalized) is None,
}
REFUSED_BY_NEW = {
    "arguments that __new__ hands on": lambda: HandsArgumentsOn(1),
    "arguments that nobody takes": lambda: object.__new__(Plain, 1),
    "keywords that nobody takes": lambda: object.__new__(Plain, k=1),
    "an int as an object": lambda: object.__new__(int),
    "a list as an object": lambda: object.__new__(Log),
    "a tensor as an object": lambda: object.__new__(torch.Tensor),
    "an exception as an object": lambda: object.__new__(Refusal),
    "a bool as an int": lambda: int.__new__(bool),
    "a text as an int": lambda: int.__new__(str),
    "an object as a list": lambda: list.__new__(Plain),
    "a list as a tuple": lambda: tuple.__new__(Log),
    "a frozenset as a set": lambda: set.__new__(frozenset),
    "a list as a deque": lambda: collections.deque.__new__(Log),
    "a number as an exception": lambda: Exception.__new__(Counter),
    "a base of the exception": lambda: KeyError.__new__(Exception, 1),
    "an exception with fields": lambda: Exception.__new__(OSError, 1),
}


@pytest.mark.filterwarnings("ignore::minidynamo.core.events.MinidynamoNotice")  # a frame with `__del__` runs eagerly
@pytest.mark.parametrize("name", [*MADE_WITHOUT_CALLS, *REFUSED_BY_NEW])
def test_new_makes_and_refuses_what_python_does(name):
    make = (MADE_WITHOUT_CALLS | REFUSED_BY_NEW)[name]

    def caught(x):
        try:
            made = make()
        except TypeError as error:
            return x + 1, str(error)
        return x * 2, made if isinstance(made, int | tuple) else None

    def raised(x):
        make()
        return x * 2

    with pytest.raises(TypeError) if name in REFUSED_BY_NEW else contextlib.nullcontext():
        make()
    for program in caught, raised:
        assert_same_as_eager(program, lambda: torch.ones(2), calls=2)
