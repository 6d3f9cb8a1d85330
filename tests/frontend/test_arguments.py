"""The accepted keywords of `compile`, and the messages for everything else."""

from __future__ import annotations

import contextlib
import inspect
from typing import get_type_hints

import pytest
import torch

import minidynamo
from minidynamo.core.events import MinidynamoNotice
from minidynamo.errors import ArgumentError, ConflictingArguments, UnknownName
from minidynamo.frontend.arguments import CompileKeywords, checked_options


def f(x):
    return x + 1


@pytest.mark.parametrize(
    ("keywords", "error", "says"),
    [
        ({"backand": "eager"}, ArgumentError, "'backand'. Did you mean 'backend'?"),
        ({"full_graph": True}, ArgumentError, "Did you mean 'fullgraph'?"),
        ({"backend": "nativ"}, UnknownName, "'nativ'. Did you mean 'native'?"),
        ({"backend": 3}, ArgumentError, "a name or a callable, not int"),
        ({"mode": "max-autotun"}, UnknownName, "Did you mean 'max-autotune'?"),
        ({"mode": 3}, ArgumentError, "mode= must be str, not int"),
        ({"mode": "default", "options": {}}, ArgumentError, "exclude each other"),
        ({"options": {"fuze": True}}, UnknownName, "'fuze'. Did you mean 'fuse'?"),
        ({"options": {"fuse": 1}}, ArgumentError, "setting `fuse` must be bool, not int"),
        ({"options": [("fuse", True)]}, ArgumentError, "options= must be dict or None, not list"),
        ({"fullgraph": 1}, ArgumentError, "fullgraph= must be bool, not int"),
        ({"dynamic": "yes"}, ArgumentError, "dynamic= must be bool or None, not str"),
        ({"recompile_limit": True}, ArgumentError, "recompile_limit= must be int, not bool"),
        ({"recompile_limit": 0}, ArgumentError, "recompile_limit= must be at least 1, not 0"),
        ({"on_error": "rise"}, UnknownName, "Did you mean 'raise'?"),
        ({"on_error": None}, ArgumentError, "on_error= must be str, not NoneType"),
        ({"steal": "xs"}, ArgumentError, 'steal=("xs",)'),
        ({"steal": 5}, ArgumentError, 'steal=("xs",)'),
        ({"steal": [1]}, ArgumentError, 'steal=("xs",)'),
        ({"name": 3}, ArgumentError, "name= must be str or None, not int"),
        ({"disable": 1}, ArgumentError, "disable= must be bool, not int"),
        ({"mode": ""}, UnknownName, "mode= cannot be ''"),
        ({"options": {3: True}}, UnknownName, "no entry 3"),
        ({"options": {"threads": -1}}, ArgumentError, "at least 0, not -1"),
    ],
)
def test_bad_keywords_are_refused_at_once(keywords, error, says):
    # With a function, and as a decorator before its function.
    for arguments in ((f,), ()):
        with pytest.raises(error) as caught:
            minidynamo.compile(*arguments, **keywords)
        assert says in str(caught.value)
        assert caught.value.code in ("MD101", "MD102", "MD103")
        assert len(str(caught.value).splitlines()) <= 12


def test_errors_are_pythons_and_torchs_kinds_as_well():
    assert issubclass(ArgumentError, TypeError) and issubclass(UnknownName, ValueError)
    with pytest.raises(RuntimeError) as caught:  # what torch raises
        minidynamo.compile(f, mode="default", options={"fuse": True})
    assert isinstance(caught.value, TypeError) and type(caught.value) is ConflictingArguments


@pytest.mark.parametrize("mode", [None, "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_torchs_modes_are_accepted(mode):
    changes_nothing = pytest.warns(MinidynamoNotice, match=f"MD114 mode='{mode}' changes nothing")
    with contextlib.nullcontext() if mode in (None, "default") else changes_nothing:
        compiled = minidynamo.compile(f, backend="eager", mode=mode)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]


def test_a_budget_may_be_a_whole_number():
    assert checked_options(options={"activation_budget": 0}).backend.key().settings[4] == ("activation_budget", 0.0)


def test_the_signature_lists_the_keywords_for_people_editors_and_type_checkers():
    shown = inspect.signature(minidynamo.compile).parameters
    assert list(shown) == ["fn_or_module", *get_type_hints(CompileKeywords)]
    assert (shown["backend"].default, shown["recompile_limit"].default) == (None, 8)
