"""Tests of minidynamo/guards/recompiles.py: the guards that fail, in words, and the messages about them."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

import minidynamo
from minidynamo.errors import UserLocation
from minidynamo.guards.check import describe
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.recompiles import (
    GuardFailure,
    Recompile,
    differs_from_frozen,
    explain,
    failures,
    limit_reached,
    refusal,
)
from minidynamo.guards.source import CellContents, Constant, InstanceAttr, Item, Local, Source, TypeOf
from minidynamo.guards.state import current
from minidynamo.guards.tensors import facts_of

K = GuardKind
X = Local("x")


class Net:
    def step(self) -> None: ...


def _words(guard: Guard, **arguments: Any) -> list[str]:
    return [str(failure) for failure in failures([guard], arguments)]


def _replacement() -> None: ...


WITH_STEP = Net()
WITH_STEP.__dict__["step"] = 1


class Slotted:
    __slots__ = ("slot",)


SLOTTED = Slotted()
SLOTTED.slot = 3
CASES: list[tuple[GuardKind, Any, Any, str]] = [
    (
        K.TENSOR,
        facts_of(torch.zeros(2, 3)),
        torch.zeros(2, 4),
        "tensor `x`: expected float32[2, 3] on cpu, got float32[2, 4] on cpu",
    ),
    (K.TENSOR, facts_of(torch.zeros(2, 3)), 7, "tensor `x`: expected float32[2, 3] on cpu, got int 7"),
    (
        K.TENSOR,
        facts_of(torch.zeros(2)),
        torch.zeros(2, requires_grad=True),
        "tensor `x`: expected float32[2] on cpu, got float32[2] on cpu with requires_grad True, not False",
    ),
    (
        K.TENSOR,
        facts_of(torch.zeros(2)),
        torch.zeros(4)[::2],
        "tensor `x`: expected float32[2] on cpu, got float32[2] on cpu with stride (2,), not (1,)",
    ),
    (K.NOT_NONE, None, None, "value of `x`: expected any but None, got None"),
    (K.TYPE, int, "a", "type of `x`: expected int, got str"),
    (K.EQUALS, 3, 4, "value of `x`: expected 3, got 4"),
    (K.EQUALS, 3, 3.0, "value of `x`: expected 3, got float 3.0"),
    (K.EQUALS, "sum", "mean", "value of `x`: expected 'sum', got 'mean'"),
    (K.IDENTITY, None, 3, "object `x`: expected None, got 3"),
    (K.IDENTITY, True, False, "object `x`: expected True, got False"),
    (
        K.IDENTITY,
        torch.relu,
        torch.sin,
        "object `x`: expected function relu, got function sin",
    ),
    (K.LENGTH, 2, [1], "length of `x`: expected 2, got 1"),
    (K.DICT_KEYS, ("a",), {"b": 1}, "keys of `x`: expected 'a', got 'b'"),
    (K.HAS_KEY, "a", {}, "keys of `x`: expected 'a' among them, got none"),
    (K.MISSING_KEY, "a", {"a": 1}, "keys of `x`: expected 'a' not among them, got 'a'"),
    (K.SET_ITEMS, frozenset({1}), {2}, "items of `x`: expected 1, got 2"),
    (K.MISSING_ATTR, "step", WITH_STEP, "attributes of `x`: expected no `step`, got `step` in the instance"),
    (K.MISSING_ATTR, "step", Net(), "attributes of `x`: expected no `step`, got `step` in the class"),
    (
        K.NO_INSTANCE_ATTR,
        "step",
        WITH_STEP,
        "attributes of `x`: expected `step` from the class, not from the instance, got `step` in the instance",
    ),
    (K.SLOT_EMPTY, "slot", SLOTTED, "attributes of `x`: expected no `slot`, got `slot` = 3"),
    (K.CELL_EMPTY, None, types.CellType(3), "variable `x`: expected no value yet, got 3"),
    (K.RELATION, True, 0, "relation `x`: expected to hold, got that it does not hold"),
    (K.SAME_OBJECT, Local("y"), 1, "object `x`: expected the same object as `y`, got another object"),
]


@pytest.mark.parametrize(("kind", "expected", "value", "words"), CASES, ids=[case[3] for case in CASES])
def test_a_failure_says_what_was_expected_and_what_came(kind: GuardKind, expected: Any, value: Any, words: str) -> None:
    assert _words(Guard(X, kind, expected), x=value, y=None) == [words]


def test_every_kind_can_be_described() -> None:
    expected: dict[GuardKind, Any] = {kind: value for kind, value, _, _ in CASES}
    expected |= {
        K.DISTINCT_OBJECTS: (Local("y"),),
        K.CLASS_ATTR: ("step", Net.step),
        K.GLOBAL_STATE: current(),
        K.CLASS_NAMES: (("step",), (object,)),
        K.BACKEND: "eager",
        K.PRESENT: None,
    }
    assert set(expected) == set(GuardKind)
    lines = [describe([Guard(X, kind, value)]) for kind, value in expected.items()]
    assert all(": " in line and "\n" not in line for line in lines)


def test_rare_settings_are_named_when_they_are_on() -> None:
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
        (line,) = describe([Guard(Source(), K.GLOBAL_STATE, current())]).splitlines()
    assert line == (
        "global state: grad mode off, inference mode, autocast to torch.bfloat16 on cpu, default torch.float32 on meta"
    )


def test_listing_names_the_users_line_once() -> None:
    where = UserLocation("/home/me/train.py", 12, "forward")
    guards = [Guard(X, K.TENSOR, facts_of(torch.zeros(3)), where), Guard(X, K.TENSOR, facts_of(torch.zeros(3)), where)]
    (line,) = describe(guards).splitlines()
    assert line.startswith("tensor `x`: float32[3] on cpu")
    assert line.endswith("# train.py:12 in forward")


def test_guards_that_hold_are_not_named() -> None:
    guards = [Guard(X, K.TENSOR, facts_of(torch.zeros(3))), Guard(Source(), K.GLOBAL_STATE, current())]
    assert failures(guards, {"x": torch.ones(3)}) == []


def test_only_the_first_failure_on_a_chain_is_named() -> None:
    guards = [
        Guard(Item(X, 1), K.EQUALS, 5),
        Guard(X, K.LENGTH, 2),
        Guard(X, K.TYPE, list),
    ]
    assert [failure.guard.kind for failure in failures(guards, {"x": (1, 2)})] == [K.TYPE]
    assert [failure.guard.kind for failure in failures(guards, {"x": [1]})] == [K.LENGTH]
    assert [str(failure) for failure in failures(guards, {"x": [1, 2]})] == ["value of `x[1]`: expected 5, got 2"]


def test_what_cannot_be_reached_is_named() -> None:
    guard = Guard(InstanceAttr(X, "gone"), K.EQUALS, 3)
    assert _words(guard, x=Net()) == ["value of `x.gone`: expected 3, got nothing there"]


def test_interpreter_state_and_backend() -> None:
    guard = Guard(Source(), K.GLOBAL_STATE, current())
    with torch.no_grad():
        (words,) = _words(guard)
    assert words == (
        "global state: expected grad mode on, default torch.float32 on cpu, got grad_enabled is False, was True"
    )
    backend = Guard(Source(), K.BACKEND, "native")
    assert failures([backend], {}) == []
    assert [str(f) for f in failures([backend], {}, backend="eager")] == ["backend: expected native, got eager"]


def test_class_attributes_and_closures_are_named_as_the_user_wrote_them() -> None:
    guard = Guard(TypeOf(X), K.CLASS_ATTR, ("step", _replacement))
    (words,) = _words(guard, x=Net())
    assert words.startswith(
        "class attributes of `type(x)`: expected `step` to be function _replacement, got function Net.step"
    )
    cell = types.CellType(3)
    assert _words(Guard(CellContents(Constant(cell, "rate")), K.EQUALS, 4)) == ["value of `rate`: expected 4, got 3"]


WHERE = UserLocation("train.py", 7, "step")


def _differs(name: str, kind: GuardKind = GuardKind.EQUALS, expected: Any = 3) -> GuardFailure:
    guard = Guard(Local(name), kind, expected, WHERE)
    return GuardFailure(guard, "3", "4", guard.advice(4))


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
    assert rows[1].strip().startswith("A number that varies is an input")
    assert GuardKind.EQUALS.value.advice in explain("step", [[_differs("mode", expected="mean")]]).diagnostic().render()
    assert rows[2].startswith("value of `a` changed (1 time") and rows[5].strip() == GuardKind.LENGTH.value.advice


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


def test_the_globals_of_a_module_have_a_name() -> None:
    names: dict[str, Any] = {}
    exec("def f(x):\n    return x + len('a')", names)
    f = minidynamo.compile(names["f"], backend="eager")
    f(torch.ones(1))
    names["len"] = lambda text: 3
    assert f(torch.ones(1)).item() == 4
    assert "keys of the module's globals: expected 'len' not among them" in f.why()
