"""The polyfills against their originals, without a tracer."""

import enum

import pytest

from minidynamo.tracer.polyfills import texts as twins


class Color(enum.Enum):
    RED = 1

    def __str__(self):
        return "red"

    def __format__(self, how):
        return f"<{how}>"


PERCENT = [
    ("%s", Color.RED),
    ("%s|%r|%a|%%", (Color.RED, Color.RED, "é")),
    ("%5s|%-5.2s|%+03d|%.2f", (Color.RED, "abc", 3, 1.5)),
    ("%(a)s %(b)r %(a)5s %%", {"a": Color.RED, "b": 3}),
    ("%s", {"a": 1}),
    ("%s %s", ([1], (2,))),
    ("nothing %% here", ()),
]
FORMAT = [
    ("{} {!s} {!r:>12} {{}}", (Color.RED, Color.RED, Color.RED)),
    ("{0} {1:>4} {0:x}|", (Color.RED, "b")),
    ("{a.name} {b[0]} {b[1][k]}", {"a": Color.RED, "b": [1, {"k": 2}]}),
    ("none", ()),
]


@pytest.mark.parametrize("text, values", PERCENT)
def test_percent(text, values):
    assert twins.percent(text, values) == text % values


@pytest.mark.parametrize("text, values", FORMAT)
def test_format(text, values):
    args, named = ((), values) if isinstance(values, dict) else (values, {})
    assert twins.format_text(text, args, named) == text.format(*args, **named)


@pytest.mark.parametrize("text", ["%*d", "%(a)s %s", "%", "%5%"])
def test_unusual_percent(text):
    assert twins.percent_fields(text) is None


@pytest.mark.parametrize("text", ["{:{}}", "{", "{} {0}", "{!x}", "{a[}"])
def test_unusual_fields(text):
    assert twins.format_fields(text) is None


def test_ascii():
    assert [*map(twins.ascii_text, ["é", Color.RED, 1])] == [*map(ascii, ["é", Color.RED, 1])]
