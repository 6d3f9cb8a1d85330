"""Attributes of constants, namedtuples, dicts and tensors."""

import collections
import enum

import pytest

from tests.end_to_end.programs import Programs

programs = Programs()


@pytest.mark.parametrize("program", programs)
def test_same_as_eager(program):
    program.check()


class Color(enum.Enum):
    RED = 1
    BLUE = 2


Pair = collections.namedtuple("Pair", "left right")


@programs()
def members_and_fields(x):
    p = Pair(x, Color.RED)
    top = x.topk(2)
    return p.left + top.values[0], p.right.name, p.right.value, p.right is Color.RED, top.indices, Color["BLUE"]


@programs()
def attributes_of_tensors(x):
    x.note = 3
    return x * x.note
