"""Attributes of constants, namedtuples, dicts and tensors."""

import collections
import enum

import pytest
import torch

import minidynamo
from minidynamo.errors import Unsupported
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


def test_an_iterator_from_outside_has_no_keys():
    f = minidynamo.compile(lambda x, pairs: (x + 1, hasattr(pairs, "keys")), backend="eager", fullgraph=True)
    assert f(torch.ones(2), enumerate("ab"))[1] is False
    f = minidynamo.compile(lambda x, pairs: (x + 1, dict(pairs)), backend="eager", fullgraph=True)
    with pytest.raises(Unsupported, match="iteration over an external enumerate") as caught:
        f(torch.ones(2), enumerate("ab"))
    assert "Pass a list instead: list(iterator)" in str(caught.value)
