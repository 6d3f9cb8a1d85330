"""Tests of minidynamo/tracer/capture/early_clears.py: slots that a graph clears early, and tensors that must outlive
their last use."""

from __future__ import annotations

import types

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
