"""Tests of minidynamo/core/defaults.py: calls use marks, introspection shows the original defaults."""

from __future__ import annotations

import copy
import inspect
import operator
import pickle

import pytest

from minidynamo.core.defaults import Defaults, KeywordDefaults, LeftOut, follow_original


def original(a: int = 1, b: str = "two", *, c: float = 3.0, d: list[int] | None = None) -> None:
    pass


@pytest.fixture
def marked():
    def source_key(a=None, b=None, *, c=None, d=None):
        return a, b, c, d

    source_key.__defaults__ = Defaults.of(original, [LeftOut("a"), LeftOut("b")])
    source_key.__kwdefaults__ = KeywordDefaults.of(original, {"c": LeftOut("c"), "d": LeftOut("d")})
    return source_key


def test_a_call_finds_marks(marked):
    assert repr(marked(5, c=6)) == "(5, <default of b>, 6, <default of d>)"
    marked.__kwdefaults__["c"] = 7
    marked.__defaults__ = (8, 9)
    assert repr(marked()) == "(8, 9, 7, <default of d>)"


def test_who_looks_finds_the_values(marked):
    shown, named = marked.__defaults__, marked.__kwdefaults__
    assert shown == (1, "two") and not operator.ne((1, "two"), shown) and tuple(shown) == (*shown,) == (1, "two")
    assert repr(shown) == "(1, 'two')" and shown[-1] == "two" and len(shown) == 2 and hash(shown) == hash((1, "two"))
    assert operator.add(shown, (3,)) == (1, "two", 3) and "two" in shown and shown.index("two") == 1 and shown < (2,)
    assert named == {"c": 3.0, "d": None} and not operator.ne({"c": 3.0, "d": None}, named)
    assert dict(named) == {**named} == named
    assert repr(named) == "{'c': 3.0, 'd': None}" and list(named.items()) == [("c", 3.0), ("d", None)]
    assert named["c"] == named.get("c") == 3.0 and len(named) == 2 and named | {"e": 1} == {"c": 3.0, "d": None, "e": 1}
    for kept in (shown, named):
        assert pickle.loads(pickle.dumps(kept)) == copy.copy(kept) == copy.deepcopy(kept) == kept
        assert type(copy.copy(kept)) in (tuple, dict)
    values = [parameter.default for parameter in inspect.signature(marked).parameters.values()]
    assert values == [1, "two", 3.0, None]


def test_what_the_original_has_now_is_shown(marked):
    was = original.__defaults__, original.__kwdefaults__
    try:
        original.__defaults__, original.__kwdefaults__ = (4, 5), {"c": 6}
        assert marked.__defaults__ == (4, 5) and marked.__kwdefaults__ == {"c": 6}
        marked.__kwdefaults__["d"] = 7
        assert marked.__kwdefaults__ == {"c": 6, "d": 7}
    finally:
        original.__defaults__, original.__kwdefaults__ = was


def test_defaults_are_followed_where_all_of_them_are_marks(marked):
    assert Defaults.of(original, []) is None and KeywordDefaults.of(original, {}) is None
    assert follow_original(marked.__defaults__) and follow_original(marked.__kwdefaults__) and follow_original(None)
    marked.__kwdefaults__["c"] = 7
    assert not follow_original(marked.__kwdefaults__) and not follow_original((1,)) and not follow_original({"a": 1})
