# The programs keep the style of users, against the advice of linters.
# ruff: noqa: PIE804, SIM905

import pytest

from tests.end_to_end.programs import Programs, two_vectors, vector
from tests.tracer.capturing import capture

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


def everything(a, b=2, /, c=3, *rest, d, e=5, **named):
    return a + b + c + sum(rest) + d + e + sum(named.values())


@programs()
def all_kinds_of_arguments(x):
    args, named = (1, 2), {"z": 9}
    return everything(x, d=1), everything(x, 1, 2, 3, 4, d=1, e=2, f=3), everything(x, *args, *[7], d=2, **named)


@programs(graphs=0, breaks=1)
def missing_argument_raises(x):
    return everything(x)


@programs(graphs=0, breaks=1)
def unknown_keyword_raises(x):
    return (lambda a: a)(x, b=1)


@programs(graphs=0, breaks=1)
def keyword_twice_raises(x):
    return everything(x, d=1, **{"d": 2})


@programs()
def defaults_of_nested_functions(x):
    def add(a, b=x, *, c=x * 2):
        return a + b + c

    return add(x), add(x, c=1), (lambda a, b=4: a * b)(x)


@programs()
def methods_of_built_in_values(x):
    words = "a b".split()
    words.append("c")
    add = words.append
    add("d")
    return x * len(words), "-".join(words), x.add(1).mul_(2).sum(dim=0, keepdim=True)


@programs()
def annotations_are_kept(x):
    def f(a: int) -> str:
        return a

    return f(x) + 1


def inner(x):
    return (x + 1).item()


def outer(x):
    return inner(x[0] * 2)


def test_the_callee_of_a_break_is_where_the_call_finds_it():
    end = capture(outer, vector()).exit
    assert end.stack[end.compiled_callee].value is inner
    assert two_vectors()
