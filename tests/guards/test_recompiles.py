from __future__ import annotations

from typing import Any

from minidynamo.errors import UserLocation
from minidynamo.guards.failures import GuardFailure, failures
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.recompiles import (
    _ADVICE,
    _NUMBER,
    Recompile,
    differs_from_frozen,
    explain,
    limit_reached,
    refusal,
)
from minidynamo.guards.source import Local

WHERE = UserLocation("train.py", 7, "step")


def _differs(name: str, kind: GuardKind = GuardKind.EQUALS, expected: Any = 3) -> GuardFailure:
    return GuardFailure(Guard(Local(name), kind, expected, WHERE), "3", "4")


def test_the_nearest_version_is_named_and_the_others_are_counted() -> None:
    recompile = explain("step", [[_differs("a"), _differs("b")], [_differs("n")], [_differs("c")] * 3])
    assert recompile == Recompile("step", 4, _differs("n"), more=0, others=2)
    text = recompile.diagnostic().render()
    head, *rest = text.splitlines()
    assert head.startswith("MD301 recompiled step (version 4): value of `n`: expected 3, got 4")
    assert head.endswith("train.py:7 in step")
    assert "2 older versions fitted less" in text
    assert "A number that varies is an input" in rest[-1] and "explain MD301" in rest[-1]


def test_further_differences_of_the_nearest_version_are_folded() -> None:
    text = explain("step", [[_differs("a"), _differs("b"), _differs("c")]]).diagnostic().render()
    assert "`a`" in text and "`b`" not in text
    assert "2 more differences" in text and "older" not in text


def test_values_that_changed_meanwhile() -> None:
    assert "nothing differs any more" in explain("step", [[]]).diagnostic().render()


def test_causes_are_ranked_by_how_often_they_came_each_with_its_fix() -> None:
    recompiles = [explain("step", [[_differs(name)]]) for name in ("a", "n", "n")]
    recompiles.append(explain("step", [[_differs("xs", GuardKind.LENGTH)]]))
    notice = limit_reached("step", 8, 8, recompiles)
    assert notice.code == "MD302" and notice.what == "stopped compiling `step`: 8 versions exist (recompile_limit=8)"
    rows = notice.why.splitlines()
    assert rows[0] == "value of `n` changed (2 times, last from 3 to 4)"
    assert rows[1].strip() == _NUMBER
    assert _ADVICE[GuardKind.EQUALS] in explain("step", [[_differs("mode", expected="mean")]]).diagnostic().render()
    assert rows[2].startswith("value of `a` changed (1 time") and rows[5].strip() == _ADVICE[GuardKind.LENGTH]


def test_the_advice_about_a_length_is_about_what_has_it() -> None:
    def advice(first: Any, then: Any) -> str:
        guard = Guard(Local("xs"), GuardKind.LENGTH, len(first), WHERE)
        (failure,) = failures([guard], {"xs": then})
        return explain("step", [[failure]]).diagnostic().fix

    assert "stack them" in advice([1], [1, 2])
    assert "in each call" in advice((1,), (1, 2)) and "stack" not in advice((1,), (1, 2))
    assert "read single keys" in advice({1: 2}, {}) and "if the number stays" in advice({}, {1: 2})


def test_more_than_three_causes_are_counted() -> None:
    notice = limit_reached("step", 1, 1, [explain("step", [[_differs(name)]]) for name in "abcde"])
    assert "and 2 other causes" in notice.why and "1 version exists" in notice.what
    assert len(notice.render().splitlines()) <= 12 and "explain MD302" in notice.render()


def test_a_refusal_says_what_differs() -> None:
    assert "No call of it was compiled" in refusal("step", ()).render()
    text = refusal("step", [[_differs("n"), _differs("m")]]).render()
    assert text.startswith("MD304 step would have to be compiled") and "value of `n`: expected 3, got 4" in text
    assert "train.py:7" in text and "A number that varies is an input" in text


def test_a_frozen_call_says_what_differs() -> None:
    text = differs_from_frozen("step", [_differs("n"), _differs("m")]).render()
    assert text.startswith("MD305 step is frozen, and this call differs: value of `n`: expected 3, got 4")
    assert "1 more difference" in text
    assert "has died" in differs_from_frozen("step", []).render()


def test_there_is_advice_for_every_kind() -> None:
    assert set(_ADVICE) == set(GuardKind)
