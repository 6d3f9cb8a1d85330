"""Tests of minidynamo/graph/boxed_text.py."""

from minidynamo.graph.boxed import is_boxed
from minidynamo.graph.boxed_text import BoxedText, Call, Pack, indented, load, text_of


def test_lines_are_printed_alone():
    call = Call("graph", "args", "out0, = ")
    assert [*map(str, indented(["x = 1", call]))] == ["    x = 1", "    out0, = graph(args)"]
    assert [*map(str, indented(indented([call])))] == ["        out0, = graph(args)"]
    assert str(Pack("args", "x, *xs")) == "args = [x, *xs]"


def test_a_loaded_function_is_boxed_and_keeps_its_parts():
    text = BoxedText(("x",), (), "x")
    source = "def call(args):\n    x, = args\n    args.clear()\n    return x\n"
    made, other = (load("host", "test", source, each, {}, "call") for each in (text, None))
    given = [1]
    assert made(given) == 1 and not given and is_boxed(made)
    assert text_of(made) is text and text_of(other) is None and text_of(len) is None
