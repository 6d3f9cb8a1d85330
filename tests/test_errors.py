from __future__ import annotations

import pytest

from minidynamo import errors
from minidynamo.errors import (
    Diagnostic,
    MinidynamoError,
    UserLocation,
    an,
    first_line,
    line_of,
    located,
    nearest,
    summary,
)


@pytest.fixture
def location(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(
        'def step(loss):\n    if loss.sum() > 0:  # "ü"\n        return "ä" + loss.item()\n', encoding="utf-8"
    )
    return lambda line, col=None, end=None: UserLocation(str(file), line, "step", col, end)


def test_a_message_has_what_where_why_and_fix(location, tmp_path):
    text = Diagnostic(
        "MD201",
        "graph break: `if` on a tensor value",
        why="The graph ends here and Python decides.",
        fix="torch.where(loss.sum() > 0, a, b)",
        marker="this is a tensor",
        where=location(2, 7, 21),
    ).render()
    assert text.splitlines() == [
        f"{'MD201 graph break: `if` on a tensor value':<75} {tmp_path}/train.py:2 in step",
        '    2 |     if loss.sum() > 0:  # "ü"',
        "               ^^^^^^^^^^^^^^  this is a tensor",
        "  The graph ends here and Python decides.",
        "  torch.where(loss.sum() > 0, a, b)      More: python -m minidynamo explain MD201",
    ]


def test_columns_count_bytes(location):
    # The columns of `loss.item()` after a letter of two bytes, in the form of co_positions.
    where = location(3, 22, 33)
    assert where.expression() == "loss.item()"
    marked, carets = Diagnostic("MD201", "x", where=where).render().splitlines()[1:3]
    assert marked[carets.index("^") : carets.rindex("^") + 1] == "loss.item()"


def test_without_columns_or_source_the_message_still_reads(location):
    assert "^" not in Diagnostic("MD201", "x", where=location(2)).render()
    nowhere = UserLocation("<nowhere>", 1, "f")
    assert Diagnostic("MD201", "x", where=nowhere).render().splitlines()[1:] == [
        "  More: python -m minidynamo explain MD201"
    ]


def test_a_message_has_at_most_twelve_lines():
    text = Diagnostic("MD201", "x", why="\n".join("abcdefghijklmnopq"), fix="y").render()
    assert len(text.splitlines()) == 12 and text.endswith("  y      More: python -m minidynamo explain MD201")


def test_the_text_of_an_error_of_others_is_never_cut():
    quoted = "\n".join(f"line {n}" for n in range(40))
    lines = Diagnostic("MD201", "x", why="\n".join("abcdefghijklmnopq"), fix="y", quoted=quoted).render().splitlines()
    assert len(lines) == 52 and lines[11:51] == [f"  line {n}" for n in range(40)]


def test_errors_get_the_line_of_the_innermost_block(location):
    for error in (MinidynamoError(Diagnostic("MD201", "x")), ValueError("x")):
        with pytest.raises(type(error)), located(location(1)), located(location(2)), located(None):
            raise error
        found = error.diagnostic.where if isinstance(error, MinidynamoError) else line_of(error)
        assert found == location(2)
    other = RuntimeError()
    other.__cause__ = error
    assert line_of(other) == location(2) and line_of(KeyError()) is None


def test_a_place_once_given_stays(location):
    diagnostic = Diagnostic("MD201", "x").at(location(1))
    assert diagnostic.at(location(2)).where == location(1)
    assert diagnostic.at(None) == diagnostic


def test_every_error_carries_its_diagnostic():
    types = [t for t in vars(errors).values() if isinstance(t, type) and issubclass(t, MinidynamoError)]
    assert len(types) > 7
    for kind in types:
        error = kind(Diagnostic("MD999", "something happened"))
        assert error.code == "MD999"
        assert "something happened" in str(error)


def test_bad_arguments_are_also_the_builtin_errors():
    assert issubclass(errors.ArgumentError, TypeError)
    assert issubclass(errors.UnknownName, ValueError)


def test_the_tree_in_the_docstring_is_complete():
    for kind in MinidynamoError.__subclasses__():
        assert f"+-- {kind.__name__} " in errors.__doc__


def test_nearest():
    assert nearest("nativ", ["native", "cpp"]) == " Did you mean 'native'?"
    assert nearest("zzz", ["native", "cpp"]) == ""
    assert nearest("nopython", ["fullgraph", "options"]) == ""


def test_errors_on_one_line():
    assert first_line(ValueError("\nno\nway")) == "no" and summary(ValueError("no\nway")) == "ValueError: no"
    assert first_line(ValueError()) == "ValueError()"
    failed = 'x == 1 INTERNAL ASSERT FAILED at "/a/b.cpp":103, please report a bug to PyTorch. '
    assert first_line(RuntimeError(f"{failed}No such thing.")) == "No such thing."
    assert first_line(RuntimeError(failed)) == "an internal check of torch failed"


def test_a_location_fits_into_a_comment(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("x = y + \\\n  \\\n\tz\x0c + 'a  b'\n")
    lines = [UserLocation(str(file), line, "step").comment() for line in range(1, 5)]
    assert lines == [
        "train.py:1 in step: x = y +",
        "train.py:2 in step",
        "train.py:3 in step: z + 'a b'",
        "train.py:4 in step",
    ]


@pytest.mark.parametrize(
    "words",
    [
        *("a tuple", "an int", "an ndarray", "an enumerate", "an LSTM", "a Linear", "a OneHot", "a Union"),
        *("an UninitializedParameter", "an UntypedStorage", "a UserDict", "an OrderedDict", "a NoneType"),
    ],
)
def test_the_article_follows_the_spoken_name(words: str) -> None:
    assert an(words.split()[1]) == words
