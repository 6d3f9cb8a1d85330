# The programs keep the style of users, against the advice of linters.

import pytest
import torch

from minidynamo import compile as compile_function
from tests.end_to_end.programs import Programs

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


def make_scaler(n):
    def scaler(x):
        return x * n

    return scaler


@programs()
def made_and_called(x):
    return make_scaler(3)(x), make_scaler(4)(x)


triple = make_scaler(3)


@programs()
def from_outside(x):
    return triple(x) + 1


@programs()
def nonlocal_counter(x):
    count = 0

    def bump():
        nonlocal count
        count += 1
        return count

    bump()
    return x * bump(), count


@programs()
def shared_cell(x):
    value = x

    def read():
        return value

    value = value + 1
    return read()


@programs()
def closure_returned(x):
    y = x + 1

    def later(z):
        return y * z

    return later(2)


@programs()
def two_levels(x):
    def outer(a):
        def inner(b):
            return a + b + x

        return inner

    return outer(1)(2)


@programs(breaks=None, graphs=None)
def class_in_closure(x):
    factor = 2

    class Scale:
        def __call__(self, v):
            return v * factor

    return Scale()(x) + 1


def counter():
    state = {"n": 0}

    def count(x):
        state["n"] += 1
        return x + state["n"]

    return count


def test_closed_over_dict_is_changed():
    count = counter()
    compiled = compile_function(count, backend="eager")
    x = torch.zeros(2)
    assert [compiled(x)[0].item() for _ in range(3)] == [1.0, 2.0, 3.0]


def cell_counter():
    n = 0

    def count(x):
        nonlocal n
        n += 1
        return x + n

    return count


def test_closed_over_number_is_changed():
    compiled = compile_function(cell_counter(), backend="eager")
    x = torch.zeros(2)
    assert [compiled(x)[0].item() for _ in range(3)] == [1.0, 2.0, 3.0]
