"""Formatting by `%` and `str.format`: the writer of the text, and formats that end the graph."""

# The programs keep the style of users, against the advice of linters.
# ruff: noqa: UP031, F507, F524

import pytest
import torch

import minidynamo
from minidynamo.errors import MinidynamoError


class Named:
    def __str__(self):
        return "named"


NAMED = Named()
LEFT_TO_PYTHON = {
    "%*s": lambda: "%*s" % (9, NAMED),
    "%d of an object": lambda: "%s %d" % (NAMED, NAMED),
    "too many values": lambda: "%s" % (NAMED, 1),
    "too few values": lambda: "{} {}".format(NAMED),
    "a format in a format": lambda: "{:{}}".format(NAMED, 9),
}


@pytest.mark.parametrize("name", LEFT_TO_PYTHON)
def test_what_python_knows_better(name):
    make = LEFT_TO_PYTHON[name]
    compiled = minidynamo.compile(lambda x: (x + 1, make()), backend="eager", fullgraph=True)
    with pytest.raises(MinidynamoError):
        compiled(torch.ones(1))


def test_the_text_of_a_tensor_is_written_after_the_graph():
    compiled = minidynamo.compile(lambda x: (x + 1, "%s" % torch.ones(1)), backend="eager", fullgraph=True)
    assert compiled(torch.ones(1))[1] == "%s" % torch.ones(1)
