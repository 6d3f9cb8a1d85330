from __future__ import annotations

from typing import Any

from minidynamo.errors import UserLocation
from minidynamo.guards.failures import GuardFailure
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.recompiles import _ADVICE, Recompile, explain, ranked_causes
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
    assert "pass what varies as a tensor" in rest[-1] and "explain MD301" in rest[-1]


def test_further_differences_of_the_nearest_version_are_folded() -> None:
    text = explain("step", [[_differs("a"), _differs("b"), _differs("c")]]).diagnostic().render()
    assert "`a`" in text and "`b`" not in text
    assert "2 more differences" in text and "older" not in text


def test_values_that_changed_meanwhile() -> None:
    assert "nothing differs any more" in explain("step", [[]]).diagnostic().render()


def test_causes_are_ranked_by_how_often_they_came() -> None:
    recompiles = [explain("step", [[_differs(name)]]) for name in ("a", "n", "n")]
    assert ranked_causes(recompiles) == "value of `n` (2 times), value of `a` (1 time)"


def test_there_is_advice_for_every_kind() -> None:
    assert set(_ADVICE) == set(GuardKind)
