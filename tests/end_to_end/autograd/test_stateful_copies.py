"""Copies of objects with a class that defines their state: modules, `__getstate__`, `__setstate__`."""

# The programs keep the style of users, against the advice of linters.

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from minidynamo.testing import assert_same_as_eager


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("offset", torch.ones(3))
        self.factor = 2.0

    def forward(self, x):
        return self.linear(x) * self.factor + self.offset


def another_factor(module, x):
    other = copy.copy(module)
    other.factor = 3.0
    return other(x) + module(x), other.factor, module.factor


def another_part_for_both(module, x):
    other = copy.copy(module)
    other.linear = nn.Identity()
    return module(x), other(x), other.linear is module.linear


def another_buffer_for_both(module, x):
    other = copy.copy(module)
    other.offset = x[0]
    return module(x), other, other.offset is module.offset


def tables_of_its_own(module, x):
    other = copy.copy(module)
    other._buffers, other._modules = dict(other._buffers), other._modules.copy()
    other.offset, other.linear = x[0] * 2, nn.Identity()
    return module(x), other(x), other.offset is module.offset


def another_mode(module, x):
    other = copy.copy(module)
    other.train(False)
    return module.training, other.training, other(x), list(other.state_dict())


@pytest.mark.parametrize(
    "program", [another_factor, another_part_for_both, another_buffer_for_both, tables_of_its_own, another_mode]
)
def test_shallow_copies_of_modules(program):
    assert_same_as_eager(program, lambda: (Scaled(), torch.randn(2, 3)), calls=2, graphs=1, breaks=0)


@pytest.mark.filterwarnings("ignore:Guards may run slower")  # says torch.compile on Python 3.13.0
def test_torch_compile_puts_its_own_methods_in_the_place_of_those_of_modules():
    torch.compile(Scaled(), backend="eager")(torch.ones(1, 3))
    assert_same_as_eager(another_factor, lambda: (Scaled(), torch.randn(2, 3)), calls=2, graphs=1, breaks=0)


class Cached:
    def __init__(self, x):
        self.x = x
        self.cache = 5

    def __getstate__(self):
        state = self.__dict__.copy()
        del state["cache"]
        return state

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.cache = 7


class KeepsState(Cached):
    def __setstate__(self, state):
        self.kept = state


class KeepsDict:
    def __init__(self, x):
        self.x = x

    def __setstate__(self, state):
        self.kept = state


class Stateless(KeepsDict):
    def __init__(self, x):
        pass


class Renames:
    def __init__(self, x):
        self.x = x

    def __getstate__(self):
        return {"y": self.x, "z": 3}


class SaysNothing(Renames):
    def __getstate__(self):
        return None


class SaysLittle(KeepsDict):
    def __getstate__(self):
        return {}


class SaysTwoThings(KeepsDict):
    def __getstate__(self):
        return (1, 2)


@pytest.mark.parametrize(
    "cls", [Cached, KeepsState, KeepsDict, Stateless, Renames, SaysNothing, SaysLittle, SaysTwoThings]
)
def test_the_class_says_what_is_copied(cls):
    def copies(obj, x):
        shallow, deep = copy.copy(obj), copy.deepcopy(obj)
        shallow.new = x + 1
        return x * 2, shallow, deep, obj, vars(shallow), vars(obj)

    assert_same_as_eager(copies, lambda: (cls(torch.ones(2)), torch.randn(2, 3)), calls=2, graphs=1, breaks=0)


class WithSlots(KeepsDict):
    __slots__ = ("slot",)

    def __init__(self, x):
        self.slot = x


class AsPair(Renames):
    def __getstate__(self):
        return ({"y": 1}, {"z": 2})


@pytest.mark.parametrize("cls", [WithSlots, AsPair])
def test_other_states_are_left_to_python(cls):
    assert_same_as_eager(lambda obj, x: (x * 2, copy.copy(obj)), lambda: (cls(torch.ones(2)), torch.randn(2)), breaks=1)
