"""Tests of minidynamo/tracer/capture/early_clears.py: slots that a graph clears early, and tensors that must outlive
their last use."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch

from minidynamo.guards.source import Attr, CellContents, Constant, InstanceAttr, Item, Local, Source
from minidynamo.tracer.capture.early_clears import find_early_clears
from minidynamo.tracer.records.side_effects import AttrDeleted, AttrSet, CellSet, Effect, GlobalSet
from minidynamo.tracer.records.traced_frame import GraphInput
from minidynamo.variables.base import ConstantVariable
from minidynamo.variables.callables import CellVariable
from minidynamo.variables.objects import ObjectVariable
from minidynamo.variables.tensors import TensorVariable
from tests.tracer.capturing import capture

NONE = ConstantVariable(None)
OBJECT = ObjectVariable(object(), object, source=Local("o"))
CELL = types.CellType()
IN_CELL = CellVariable(source=Constant(CELL, "v"), cell=CELL)
GLOBALS: dict[str, object] = {}
IN_GLOBALS = Item(Constant(GLOBALS, "G"), "v")


def given(source: Source) -> GraphInput:
    node = torch.fx.Graph().placeholder("v")
    return GraphInput(node, source, TensorVariable(node, torch.empty(2), source=source))


@pytest.mark.parametrize(
    "effect, source, is_removed",
    [
        (AttrSet(OBJECT, "v", NONE), InstanceAttr(Local("o"), "v"), False),
        (AttrSet(OBJECT, "v", NONE), Attr(Local("o"), "v"), False),
        (AttrSet(OBJECT, "w", NONE), Attr(Local("o"), "v"), None),
        (AttrSet(OBJECT, "v", NONE), Attr(Local("other"), "v"), None),
        (AttrSet(OBJECT, "v", ConstantVariable(0)), Attr(Local("o"), "v"), None),
        (AttrDeleted(OBJECT, "v"), InstanceAttr(Local("o"), "v"), True),
        (CellSet(IN_CELL, NONE), CellContents(Constant(CELL, "v")), False),
        (CellSet(IN_CELL, None), CellContents(Constant(CELL, "v")), True),
        (GlobalSet(GLOBALS, "v", NONE), IN_GLOBALS, False),
        (GlobalSet(GLOBALS, "v", None), IN_GLOBALS, True),
        (GlobalSet(GLOBALS, "w", None), IN_GLOBALS, None),
    ],
)
def test_what_an_effect_leaves(effect: Effect, source: Source, is_removed: bool | None) -> None:
    found = find_early_clears([effect], [given(source)], ())
    assert [place.is_removed for place in found] == ([] if is_removed is None else [is_removed])
    assert [place.is_slot for place in found] == [isinstance(source, Attr | CellContents)] * len(found)


def test_what_is_needed_behind_the_graph_stays() -> None:
    one = given(Attr(Local("o"), "v"))
    assert find_early_clears([AttrDeleted(OBJECT, "v")], [one], {one.variable}) == ()


@torch.library.custom_op("test_idle_slots::own", mutates_args=())
def own(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@own.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def three() -> list[torch.Tensor]:
    return [torch.ones(2) for _ in range(3)]


def test_a_popped_element_is_idle_if_an_operator_is_called_after_its_last_use() -> None:
    def program(xs: list[torch.Tensor]) -> torch.Tensor:
        a = own(xs[0] + xs[1])
        del xs[1]  # read before `own`
        b = own(a + xs.pop())  # popped before `own`
        del xs[0]
        return b

    idle = capture(program, three()).idle_slots
    assert idle is not None and not idle.others
    assert [*idle.lists.values()] == [{0, 1}]


def test_so_is_a_slot_of_a_dict_or_an_object() -> None:
    class Box:
        x = torch.ones(2)

    def program(d: dict[str, torch.Tensor], o: Any) -> torch.Tensor:
        a = own(d.pop("a"))
        b = own(d["b"] + a)
        del d["b"]
        x, o.x = o.x, None
        return own(b + x)

    box = Box()
    box.x = torch.ones(2)
    traced = capture(program, {"a": torch.ones(2), "b": torch.ones(2)}, box)
    assert traced.idle_slots is not None
    assert [slot.key for slot in traced.idle_slots.others] == ["b"] and len(traced.early_clears) == 3


@pytest.mark.parametrize(("appends_late", "known"), [(True, True), (False, False)])
def test_other_changes_are_unknown_to_a_later_operator(appends_late: bool, known: bool) -> None:
    def program(xs: list[torch.Tensor]) -> torch.Tensor:
        a = xs.pop()
        if not appends_late:
            xs.append(a + 1)
        a = own(a)
        if appends_late:
            xs.append(a)
        return a

    assert (capture(program, three()).idle_slots is not None) == known
