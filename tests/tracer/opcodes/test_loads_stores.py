# The programs keep the style of users, against the advice of linters.
# ruff: noqa: B023, F821, RET504

import pytest
import torch

from tests.end_to_end.programs import Programs, two_vectors, vector
from tests.tracer.capturing import capture, guards_on

programs = Programs()
LEVEL = 2.0
counted = 0


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


@programs(two_vectors)
def swap(x, y):
    x, y = y, x
    return x - y


@programs()
def delete_and_bind_again(x):
    y = x + 1
    del x
    x = y * 2
    return x


@programs(graphs=0, breaks=1)
def unbound_local_raises(x):
    if LEVEL > 5:
        y = x
    return y


@programs()
def argument_in_a_cell(x):
    def add(y):
        return x + y

    return add(x)


@programs()
def cell_written_by_the_inner_function(x):
    total = x

    def add():
        nonlocal total
        total = total + 1
        return total

    return add() + add() + total


@programs()
def cell_deleted(x):
    y = x + 1

    def read():
        return y

    z = read()
    del y
    return z


@programs(graphs=0, breaks=None)
def empty_cell_raises(x):
    def read():
        return later

    result = read()
    later = x
    return result


@programs()
def function_returned_with_its_cell(x):
    y = x + 1

    def get():
        return y

    return get()


@programs()
def comprehension_variable_in_a_closure(x):
    functions = [lambda: i * x for i in range(3)]
    i = 10
    return functions[0]() + i


@programs()
def assertion(x):
    assert x.dim() == 1, "one dimension"
    return x + LEVEL


@programs(graphs=0, breaks=1)
def missing_global_raises(x):
    return no_such_name


def test_globals_are_guarded_and_written_back():
    def count(x):
        global counted
        counted += 1
        return x + counted

    traced = capture(count, torch.ones(2))
    assert next(iter(guards_on(traced, "counted").values())) == 0
    (effect,) = traced.side_effects.journal
    assert (effect.name, effect.value.value) == ("counted", 1)


def test_builtins_are_guarded_against_a_global_of_that_name():
    traced = capture(lambda x: x + len([1]), torch.ones(2))
    (guard,) = [g for g in traced.guards if g.expected == "len"]
    assert guard.kind.value == "missing key"


def test_arguments_that_are_only_passed_on_are_not_guarded():
    traced = capture(lambda x, n: (x + 1, n), torch.ones(2), 5)
    assert not guards_on(traced, "n")
    assert guards_on(capture(lambda x, n: x + n, torch.ones(2), 5), "n")
    several = capture(lambda x, a, b, c, d: (x + 1, a, [b, c], {"d": d}), torch.ones(2), 1, 2, 3, 4)
    assert not any(guards_on(several, name) for name in "abcd")
    assert vector().shape == (4,)
