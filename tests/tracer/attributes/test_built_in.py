"""Attributes of constants, namedtuples, dicts and tensors."""

import collections
import enum

from tests.end_to_end.programs import Programs

programs = Programs()
test_same_as_eager = programs.test()


class Color(enum.Enum):
    RED = 1
    BLUE = 2


Pair = collections.namedtuple("Pair", "left right")


@programs()
class Cases:
    def members_and_fields(x):
        p = Pair(x, Color.RED)
        top = x.topk(2)
        return p.left + top.values[0], p.right.name, p.right.value, p.right is Color.RED, top.indices, Color["BLUE"]

    def attributes_of_tensors(x):
        x.note = 3
        return x * x.note
