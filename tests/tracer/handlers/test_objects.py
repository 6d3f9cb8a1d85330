import collections.abc
import typing

import pytest
import torch

import minidynamo
from tests.end_to_end.programs import Programs, vector

programs = Programs()
test_same_as_eager = programs.test()


class Animal:
    def speak(self):
        return 1


class Dog(Animal):
    def speak(self):
        return super().speak() + super().speak()

    @classmethod
    def make(cls):
        return cls()

    @property
    def parent(self):
        return super().speak()


class Puppy(Dog):
    def speak(self):
        scale = 10

        def inner():
            return scale

        return super().speak() * inner()


class Everything(type):
    def __instancecheck__(cls, obj):
        return True


class Any(metaclass=Everything):
    pass


class Failing(Animal):
    def deleted(self):
        del self
        return super().speak()

    def other(self):
        self = 5  # noqa: F841
        return super().speak()

    def alone(*args):
        return super().speak()

    def of_another(self):
        return super(Puppy, self).speak()


def free(self):
    return super().speak()


def said(call):
    try:
        return call()
    except Exception as error:
        return type(error), error.args


SUPER_CALLS = [Failing().deleted, Failing().other, Failing.alone, Failing().of_another]


@pytest.mark.filterwarnings("ignore:.*runs eagerly")
@pytest.mark.parametrize("call", [*SUPER_CALLS, lambda: free(Failing()), lambda: super().speak(), lambda: Dog.speak(3)])
def test_what_super_says_when_it_fails(call):
    x = torch.ones(2)
    compiled = minidynamo.compile(lambda x: (x + 1, said(call)), backend="eager")
    assert compiled(x)[1] == said(call)
    uncaught = minidynamo.compile(lambda x: (x + 1, call()), backend="eager")
    assert said(lambda: uncaught(x)) == said(call)
    if hasattr(call, "__self__"):
        assert said(minidynamo.compile(call, backend="eager")) == said(call)


TUPLE, LIST, CALLABLE = typing.Tuple, typing.List, typing.Callable  # noqa: UP006


class SaysList:
    __class__ = property(lambda self: list)


@programs()
class Cases:
    @programs(lambda: (vector(), Puppy()))
    def class_checks(x, p):
        return (
            x * p.speak(),
            isinstance(p, Dog),
            isinstance(p, (int, Animal)),
            isinstance(p, int | str),
            isinstance(3, int | None),
            isinstance(x, torch.Tensor),
            isinstance(x, torch.nn.Parameter),
            issubclass(Puppy, Animal),
            issubclass(bool, (int, str)),
            type(p) is Puppy,
            type(p).__name__,
            p.__class__ is Puppy,
            p.parent,
            type(Dog.make()) is Dog,
        )

    def abstract_classes(x):
        return (
            x + 1,
            isinstance([], collections.abc.Sequence),
            isinstance({}, collections.abc.Mapping),
            isinstance((), collections.abc.Hashable),
            isinstance(len, collections.abc.Callable),
            isinstance(3, collections.abc.Iterable),
            isinstance(True, int),
        )

    @programs(breaks=1, graphs=1)
    def metaclass_that_decides_breaks(x):
        y = x + 1
        return y, isinstance(3, Any)

    @programs(graphs=0, breaks=1)
    def isinstance_of_a_number_raises(x):
        return isinstance(x, 3)

    @programs(breaks=1, graphs=1)
    def class_made_while_tracing_breaks(x):
        y = x + 1
        return y, type("New", (), {}).__name__

    @programs(lambda: (vector(), (1,)))
    def names_of_typing(x, pair):
        checks = (
            isinstance(pair, TUPLE),
            isinstance(x, (TUPLE, LIST)),
            isinstance(len, CALLABLE),
            isinstance(x, CALLABLE),
        )
        return x + 1, checks, issubclass(type(pair), TUPLE), issubclass(list, TUPLE), issubclass(list, LIST)

    @programs(lambda: (vector(),), breaks=None, graphs=None)
    def names_of_typing_ask_what_an_object_is(x):
        claiming = SaysList()
        alone = isinstance(claiming, LIST), isinstance(claiming, list), isinstance(claiming, SaysList)
        return x + 1, alone, isinstance(claiming, (LIST, int)), isinstance(claiming, (LIST, list))
