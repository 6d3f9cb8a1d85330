"""Tests of minidynamo/codegen/runtime/host_text.py: host programs from their parts."""

import pytest

from minidynamo.codegen.runtime.host_text import HostText
from minidynamo.graph.boxed import is_boxed
from minidynamo.graph.boxed_text import BoxedText, text_of

BODY = BoxedText(("a", "b"), ("c = add(a, b)", "del a"), "(c, b)")


def add(a, b):
    return a + b


def test_a_host_program_takes_and_empties_a_list():
    call = HostText("graph", "args", BODY).load({"add": add})
    args = [1, 2]
    assert call(args) == (3, 2) and args == [] and is_boxed(call)
    with pytest.raises(TypeError, match="tuple"):
        call((1, 2))


def test_parts_are_kept_for_callers_that_contain_the_statements():
    """A program with another argument is only called."""
    assert text_of(HostText("graph", "args", BODY).load({"add": add})) is BODY
    call = HostText("graph", "args", BODY, "receiver").load({"add": add})
    assert text_of(call) is None and call([1, 2], None) == (3, 2)
