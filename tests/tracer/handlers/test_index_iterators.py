"""Iterators over objects that have `__getitem__` alone: their items, their class, and their end."""

import operator
import re

import pytest
import torch

import minidynamo

ASKED: list[object] = []


class Indexed:
    """Has three items; raises `ends` after the items, and returns the `lengths` in sequence."""

    def __init__(self, ends=IndexError, lengths=(3,)):
        self.ends, self.lengths = ends, [*lengths]

    def __getitem__(self, position):
        ASKED.append(position)
        if not 0 <= position < 3:
            raise self.ends(position)
        return position * 2

    def __len__(self):
        length = self.lengths.pop(0)
        self.lengths.append(length)
        if isinstance(length, Exception):
            raise length
        return length


def classes(obj):
    return type(iter(obj)), type(reversed(obj)), hasattr(iter(obj), "send")


def goes_on_behind_errors(obj):
    found = []
    for iterator in (iter(obj), reversed(obj)):
        for _ in range(5):
            try:
                found.append(next(iterator, "end"))
            except Exception as error:
                found.append(type(error))
    return found


PROGRAMS = [classes, goes_on_behind_errors, lambda obj: (list(reversed(obj)), 4 in iter(obj), max(reversed(obj)))]
MADE = {
    "plain": Indexed,
    "stops": lambda: Indexed(StopIteration),
    "fails": lambda: Indexed(KeyError),
    "grows": lambda: Indexed(KeyError, lengths=(5, 3)),
    "is empty": lambda: Indexed(lengths=(0,)),
    "refuses": lambda: Indexed(lengths=(ValueError("no"), TypeError("none"))),
}


def run(program, make):
    ASKED.clear()
    try:
        return program(make()), [*ASKED]
    except Exception as error:
        return type(error), error.args, [*ASKED]


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("program", PROGRAMS)
def test_same_as_eager(program, made):
    compiled = minidynamo.compile(lambda x, obj: (x + 1, program(obj)), backend="eager")
    x = torch.ones(2)
    for _ in range(2):
        assert run(lambda obj: compiled(x, obj)[1], MADE[made]) == run(program, MADE[made])


def test_no_break():
    compiled = minidynamo.compile(lambda x, obj: [x + i for i in reversed(obj)], backend="eager", fullgraph=True)
    assert [v.item() for v in compiled(torch.zeros(()), Indexed())] == [4, 2, 0]


def returned(x, obj):
    there, back, over = iter(obj), reversed(obj), iter(obj)
    next(there), next(back), list(over)
    return x + 1, there, back, over


def test_they_leave_the_frame_where_they_are():
    compiled = minidynamo.compile(returned, backend="eager", fullgraph=True)
    for function in (returned, compiled):
        ASKED.clear()
        _, there, back, over = function(torch.ones(2), Indexed())
        assert ASKED == [0, 2, 0, 1, 2, 3]
        assert [type(it).__name__ for it in (there, back, over)] == ["iterator", "reversed", "iterator"]
        assert [operator.length_hint(it) for it in (there, back, over)] == [2, 2, 0]
        assert [[*it] for it in (there, back, over)] == [[2, 4], [2, 0], []]


def test_a_break_in_the_loop():
    def program(x, obj):
        for i in reversed(obj):
            x = x + i
            if x.sum() > 5:
                ASKED.append("large")
        return x

    compiled = minidynamo.compile(program, backend="eager")
    seen = []
    for function in (program, compiled):
        ASKED.clear()
        seen.append((function(torch.ones(1), Indexed()).item(), [*ASKED]))
    assert seen[0] == seen[1]


def test_what_takes_no_indices_is_not_iterated_over():
    def program(x, match):
        try:
            return x + 1, list(match)
        except TypeError as error:
            return x + 1, str(error)

    match = re.match("(a)(b)", "ab")
    assert minidynamo.compile(program, backend="eager")(torch.ones(1), match)[1] == program(torch.ones(1), match)[1]
