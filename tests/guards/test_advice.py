"""Tests of minidynamo/guards/advice.py: the fixes in messages about recompiles."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import minidynamo
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.recompiles import explain, failures
from minidynamo.guards.source import Local


def test_the_advice_about_a_length_is_about_what_has_it() -> None:
    def advice(first: Any, then: Any) -> str:
        guard = Guard(Local("xs"), GuardKind.LENGTH, len(first))
        (failure,) = failures([guard], {"xs": then})
        return explain("step", [[failure]]).diagnostic().fix

    assert "stack them" in advice([1], [1, 2])
    assert "in each call" in advice((1,), (1, 2)) and "stack" not in advice((1,), (1, 2))
    assert "read single keys" in advice({1: 2}, {}) and "if the number stays" in advice({}, {1: 2})


@pytest.mark.parametrize("values", [(torch.ones(2), torch.ones(3)), (2, 3)])
def test_advice_follows_from_what_may_vary(values):
    def last(**options):
        f = minidynamo.compile(lambda x, y: y * 2 + x, backend="eager", **options)
        for value in values:
            f(value, torch.ones(1))
        return f.why()

    assert "dynamic=False each value has a version: leave dynamic= out" in last(dynamic=False)
    assert "from its second value on" in last()


def test_advice_for_another_class_of_number():
    f = minidynamo.compile(lambda x, y: y * x, backend="eager")
    f(2, torch.ones(1)), f(2.5, torch.ones(1))
    assert "pass numbers of one class" in f.why()
