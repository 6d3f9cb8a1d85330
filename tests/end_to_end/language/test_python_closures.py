# The programs keep the style of users, against the advice of linters.

import torch

from minidynamo import compile as compile_function
from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


def make_scaler(n):
    def scaler(x):
        return x * n

    return scaler


triple = make_scaler(3)


def counter():
    state = {"n": 0}

    def count(x):
        state["n"] += 1
        return x + state["n"]

    return count


def cell_counter():
    n = 0

    def count(x):
        nonlocal n
        n += 1
        return x + n

    return count


@programs()
class Cases:
    made_and_called = lambda x: (make_scaler(3)(x), make_scaler(4)(x))
    from_outside = lambda x: triple(x) + 1

    def nonlocal_counter(x):
        count = 0

        def bump():
            nonlocal count
            count += 1
            return count

        bump()
        return x * bump(), count

    def shared_cell(x):
        value = x
        read = lambda: value
        value = value + 1
        return read()

    def closure_returned(x):
        y = x + 1
        later = lambda z: y * z
        return later(2)

    def two_levels(x):
        def outer(a):
            inner = lambda b: a + b + x
            return inner

        return outer(1)(2)

    @programs(breaks=None, graphs=None)
    def class_in_closure(x):
        factor = 2

        class Scale:
            def __call__(self, v):
                return v * factor

        return Scale()(x) + 1


def test_closed_over_dict_is_changed():
    count = counter()
    compiled = compile_function(count, backend="eager")
    x = torch.zeros(2)
    assert [compiled(x)[0].item() for _ in range(3)] == [1.0, 2.0, 3.0]


def test_closed_over_number_is_changed():
    compiled = compile_function(cell_counter(), backend="eager")
    x = torch.zeros(2)
    assert [compiled(x)[0].item() for _ in range(3)] == [1.0, 2.0, 3.0]
