"""`locals()` and `vars()` inside of captured functions."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from tests.end_to_end.histories import Histories, compare
from tests.end_to_end.programs import Programs, two_vectors, vector

programs = Programs()
test_same_as_eager = programs.test()
histories = Histories()


@pytest.mark.parametrize("history", histories)
def test_same_history_as_eager(history):
    compare(history, "eager")


class Settings:
    def __init__(self, width, depth=2, *rest, scale=1.5, **others):
        self.__dict__.update({name: value for name, value in locals().items() if name != "self"})


class Base:
    def values(self, x):
        return super().__str__ is not None, vars(), x


@programs(vector)
def names_and_values(x, n=3, *, k=4):
    a = x * 2
    if n > 5:
        b = a
    c = [i for i in range(n)]
    found = locals()
    d = 1
    return list(found), found["a"] + found["k"], d, found


@programs(two_vectors)
def text_of_names(x, y):
    text = lambda name, times: "{name}*{times}".format(**vars())
    return text("x", 3), x * 3


@programs(vector)
def closed_over_names(x):
    a = 2

    def inner(b):
        c = b + a
        return locals()

    return inner(x), (lambda z: locals())(x * a), x


@programs(vector)
def objects_made_of_names(x):
    made = Settings(3, 4, 5, 6, scale=2.5, more=x)
    return made.width * x, made.rest, made.others, made.scale, Base().values(x)[1]["x"]


@programs(vector)
def a_name_is_changed_or_missing(x):
    y = x + 1
    found = locals()
    found["y"] = 0
    del found["x"]
    return y, "z" in found, found


@programs(vector, breaks=1, graphs=2)
def names_behind_a_break(x):
    unused = x * 2
    minidynamo.graph_break()
    return sorted(locals()), x + 1


def asked_twice(x):
    first = locals()
    y = x + 1
    second = locals()
    return sorted(first), first is second


def asked_in_a_loop(x):
    found = []
    for _ in range(3):
        found.append(locals())
        y = x + 1
    return [sorted(names) for names in found], found[0] is found[2]


def asked_by_a_callee(x):
    y = x + 1
    return asked_twice(y)


@pytest.mark.filterwarnings("ignore:.*MD233")
@pytest.mark.parametrize("program", [asked_twice, asked_in_a_loop, asked_by_a_callee])
def test_a_second_call_may_give_the_first_dict(program):
    compiled = minidynamo.compile(program, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(2)) == program(torch.ones(2))


@histories
def what_a_name_is_bound_to(compiled):
    def program(x, flag, scale=None):
        if flag:
            y = 2
        if scale:
            z = scale
        names = locals()
        return x * sum([v for v in names.values() if type(v) is int]), sorted(names)

    program = compiled(program)
    for flag, scale in ((True, None), (False, None), (False, 3), (True, 4), (0, 4)):
        yield program(torch.ones(2), flag, scale)
