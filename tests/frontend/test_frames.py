from __future__ import annotations

import inspect
import itertools
import types
import weakref

import pytest
import torch

import minidynamo
from minidynamo.frontend import frames
from minidynamo.frontend.frames import OwnNames, RootFrame


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


@pytest.mark.parametrize("arguments", [((1,), {}), ((1, 9, 3), {"m": 6}), ((1,), {"b": 4, "k": 8}), ((1, 2, 3), {})])
def test_a_call_is_given_again_to_a_function_with_other_defaults(arguments):
    args, kwargs = arguments
    bound = inspect.signature(everything).bind(*args, **kwargs)
    frame = RootFrame(everything, "name")
    values = [bound.arguments.get(name, frame.left_out.get(name)) for name in frame.parameters]
    values[2:] = [values[2] or (), values[3], values[4] or {}]
    call_arguments = frame.call_arguments(values)
    assert everything(*call_arguments[0], **call_arguments[1]) == everything(*args, **kwargs)
    assert ("k" in call_arguments[1]) == ("k" in kwargs)


@pytest.mark.parametrize(
    ("fn", "signature"),
    [
        (lambda self, *args, **kwargs: 0, "*args, **kwargs"),
        (lambda self, /, a, b=2: 0, "a, b=None"),
        (lambda self, a, /, *, k: 0, "a, /, *, k"),
    ],
)
def test_the_function_of_an_owner_does_not_take_it(fn, signature):
    owner = torch.nn.Module()
    frame = RootFrame(fn, "name", weakref.ref(owner))
    assert frame.signature == signature and frame.parameters[0] == "self"


def test_what_has_no_name_is_given_by_its_place():
    def f(a=1, b=2, /, c=3):
        return a, b, c

    frame = RootFrame(f, "name")
    left_out = frame.left_out
    assert frame.call_arguments([1, 2, left_out["c"]]) == ([1, 2], {})
    assert frame.call_arguments([left_out["a"], left_out["b"], 6]) == ([], {"c": 6})


def test_a_frame_is_of_the_code_and_the_defaults_that_its_function_had():
    def f(a=1, *, b=2):
        return a, b

    frame = RootFrame(f, "name")
    assert frame.is_current()
    f.__kwdefaults__ = {"b": 2}
    assert not frame.is_current()


def test_leaving_drops_every_name():
    assert RootFrame(keyword_only, "name").tail_call("go(boxed)") == [
        "boxed = [a, k, l]",
        "del a, k, l",
        "return go(boxed)",
    ]
    assert RootFrame(no_parameters, "name").tail_call("go(boxed)") == ["boxed = []", "return go(boxed)"]


def test_a_guarded_cell_may_have_the_name_of_the_mark(monkeypatch):
    def apply(function):
        def call(args, kwargs):
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(frames, "_marks", itertools.count())  # as in a new process
    compiled = minidynamo.compile(apply(torch.Tensor.abs), backend="eager")
    for _ in range(2):
        assert compiled((-torch.ones(1),), {}).item() == 1


def test_names_of_ours_begin_no_parameter():
    names = OwnNames.avoiding(["boxed", "_boxed_too", "fits2"])
    assert (names.boxed, names.fits, names.miss) == ("__boxed", "_fits", "miss")


@pytest.mark.parametrize(
    ("name", "identifier"), [("<lambda>", "lambda_"), ("f.<locals>.g", "f_locals_g"), ("<>", "function")]
)
def test_every_function_has_a_name_that_text_can_have(name, identifier):
    fn = types.FunctionType(no_parameters.__code__, {}, name)
    assert RootFrame(fn, "name").function_name == identifier
