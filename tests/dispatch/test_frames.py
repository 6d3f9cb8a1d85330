from __future__ import annotations

import types

import pytest

from minidynamo.dispatch.frames import OwnNames, RootFrame


def everything(a, /, b: int = 1, *args: int, k="k", **kw) -> tuple:
    return a, b, args, k, kw


def keyword_only(a, *, k, l=5):  # noqa: E741
    return a, k, l


def no_parameters():
    return ()


@pytest.mark.parametrize(
    ("fn", "signature", "values"),
    [
        (everything, "a, /, b=None, *args, k=None, **kw", [1, 2, (3, 4), 5, {"m": 6}]),
        (keyword_only, "a, *, k, l=None", [1, 2, 3]),
        (no_parameters, "", []),
    ],
)
def test_a_call_runs_natively_from_its_list(fn, signature, values):
    frame = RootFrame(fn, "name")
    assert (frame.signature, len(frame.parameters)) == (signature, len(values))
    expected = tuple(values)
    assert frame.native(values) == expected and values == []


def test_leaving_drops_every_name():
    assert RootFrame(keyword_only, "name").leave("go(boxed)") == [
        "boxed = [a, k, l]",
        "del a, k, l",
        "return go(boxed)",
    ]
    assert RootFrame(no_parameters, "name").leave("go(boxed)") == ["boxed = []", "return go(boxed)"]


def test_names_of_ours_begin_no_parameter():
    names = OwnNames.beside(["boxed", "_boxed_too", "fits2"])
    assert (names.boxed, names.fits, names.miss) == ("__boxed", "_fits", "miss")


@pytest.mark.parametrize(
    ("name", "identifier"), [("<lambda>", "lambda_"), ("f.<locals>.g", "f_locals_g"), ("<>", "function")]
)
def test_every_function_has_a_name_that_text_can_have(name, identifier):
    fn = types.FunctionType(no_parameters.__code__, {}, name)
    assert RootFrame(fn, "name").function_name == identifier
