"""The polyfills against their originals, without a tracer."""

import collections
import copy
import enum
import types

import pytest
import torch

import minidynamo
from minidynamo.testing import assert_same_as_eager
from minidynamo.tracer.polyfills import objects as twins


class Plain:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def __eq__(self, other):
        return type(self) is type(other) and vars(self) == vars(other)


class Slotted:
    __slots__ = ("a", "b")

    def __eq__(self, other):
        return self.a == other.a and hasattr(self, "b") == hasattr(other, "b")


class Items(list):
    pass


class Table(dict):
    pass


class Pair(tuple):
    pass


class Own:
    def __copy__(self):
        return "copied"

    def __deepcopy__(self, memo):
        return "copied deeply"


class Color(enum.Enum):
    RED = 1


def slotted():
    made = Slotted()
    made.a = [1]
    return made


def items():
    made = Items([1, [2]])
    made.tag = {"a": []}
    return made


MAKERS = [
    *(lambda value=value: value for value in (1, "a", None, (1, 2), (1, [2]), Color.RED, Color, len, ...)),
    lambda: [1, [2]],
    lambda: {"a": [1], (1, 2): {3}},
    lambda: {1, 2},
    lambda: collections.deque([1, [2]]),
    lambda: collections.OrderedDict(a=[1]),
    lambda: collections.defaultdict(list, a=[1]),
    lambda: Plain(a=[1], b=Plain(c=2)),
    lambda: Table(a=[1]),
    lambda: Pair([1, [2]]),
    lambda: types.SimpleNamespace(a=1).__dict__,
    Own,
    slotted,
    items,
]


@pytest.mark.parametrize("make", MAKERS)
def test_copies(make):
    value = make()
    for twin, original in ((twins.copy_copy, copy.copy), (twins.copy_deepcopy, copy.deepcopy)):
        made, expected = twin(value), original(value)
        assert made == expected and type(made) is type(expected)
        assert (made is value) is (expected is value)
        assert getattr(made, "__dict__", None) == getattr(expected, "__dict__", None)


def test_deep_copies_keep_what_is_shared_and_circular():
    inner = [1]
    value = {"a": inner, "b": inner}
    value["c"] = value
    made = twins.copy_deepcopy(value)
    assert made["a"] is made["b"] is not inner and made["c"] is made


@pytest.mark.parametrize("value", [torch.ones(2)[1:], torch.nn.Linear(1, 1), collections.Counter("a"), object()])
def test_what_is_not_copied(value):
    with pytest.raises(NotImplementedError):
        twins.copy_deepcopy(value)


class Answering:
    """Records reads of missing attributes."""

    def __init__(self, asked, answer):
        self.asked, self.answer = asked, answer

    def __getattr__(self, name):
        if name in ("asked", "answer"):
            raise AttributeError(name)
        self.asked.append(name)
        raise AttributeError(name)


class AnsweringAll:
    def __init__(self, asked, answer):
        self.asked, self.answer = asked, answer

    def __getattr__(self, name):
        return 9


@pytest.mark.parametrize("cls", [Answering, AnsweringAll])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_classes_that_answer_for_missing_attributes(cls, copied):
    def program(value):
        return vars(copied(value))

    def outcome(fn):
        asked = []
        try:
            return asked, fn(cls(asked, 1))
        except TypeError as error:
            return asked, str(error)

    assert outcome(minidynamo.compile(program, backend="eager")) == outcome(program)


class Config:
    """Its attributes have second names, like the configurations of many libraries."""

    second_names = types.MappingProxyType({"n": "hidden"})

    def __init__(self, hidden, names):
        self.hidden, self.names = hidden, names

    def __setattr__(self, name, value):
        super().__setattr__(type(self).second_names.get(name, name), value)

    def __getattribute__(self, name):
        return super().__getattribute__(Config.second_names.get(name, name))


class Proxy:
    def __init__(self, inner):
        object.__setattr__(self, "inner", inner)

    def __getattribute__(self, name):
        return getattr(object.__getattribute__(self, "inner"), name)


@pytest.mark.parametrize("make", [lambda config: config, Proxy])
def test_classes_that_answer_for_all_attributes(make):
    def program(value, x):
        deep, shallow = copy.deepcopy(value), copy.copy(value)
        deep.n = 5
        deep.names.append("c")
        return x * deep.n + value.n, type(deep), type(shallow), deep, shallow, shallow.names is value.names

    assert_same_as_eager(program, lambda: (make(Config(3, ["a"])), torch.ones(2)), calls=2)


def test_who_a_bound_method_belongs_to():
    def program(x):
        add, join = [1].append, "-".join
        add(2)
        return add.__self__, join.__self__, add.__name__, x.sin.__self__ is x, x.sin.__name__

    assert_same_as_eager(program, lambda: torch.ones(2), breaks=0)
