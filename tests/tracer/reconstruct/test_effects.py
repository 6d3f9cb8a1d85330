"""Tests of minidynamo/tracer/reconstruct/effects.py: each kind of effect, replayed on real values."""

import types
from typing import Any

import pytest
import torch

from minidynamo.guards.source import Constant, Local
from minidynamo.tracer.reconstruct.effects import lost_effects
from minidynamo.tracer.records.side_effects import AttrSet, Called, CellSet, ContentsChanged, GlobalSet
from minidynamo.variables.callables import BuiltinVariable, CellVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictKey, DictVariable, ListVariable
from minidynamo.variables.objects import ClassVariable, ObjectVariable
from tests.tracer.frame_builder import Box, FrameBuilder, ones

C = ConstantVariable


def test_what_a_property_hides_goes_into_the_dictionary() -> None:
    class Hiding:
        @property
        def slot(self) -> int:
            return 0

    value = Hiding()
    frame = FrameBuilder()
    tracked = frame.object("r", Hiding)
    frame.side_effects.set_attr(tracked, "slot", C(1))
    frame.print(frame.returns(C(None))).body([value])
    assert value.__dict__ == {"slot": 1} and value.slot == 0


def test_attributes_that_come_and_go() -> None:
    frame = FrameBuilder()
    box = frame.object("m", Box)
    frame.side_effects.set_attr(box, "passing", C(1))
    frame.side_effects.delete_attr(box, "passing")
    frame.side_effects.delete_attr(box, "count")
    frame.side_effects.set_attr(box, "new", box)
    value = Box()
    frame.print(frame.returns(C(None))).body([value])
    assert value.__dict__ == {"new": value}


def test_class_attributes_go_through_type() -> None:
    class Counter:
        total = 0

    frame = FrameBuilder()
    cls = ClassVariable(Counter, source=Local(frame.parameter("cls")))
    frame.side_effects.set_attr(cls, "total", C(5))
    frame.print(frame.returns(C(None))).body([Counter])
    assert Counter.total == 5


def test_globals_and_cells() -> None:
    namespace: dict[str, Any] = {"old": 1}
    cell, emptied = types.CellType(1), types.CellType(2)
    frame = FrameBuilder()
    x = frame.tensor("x")
    effects = frame.side_effects
    effects.set_global(namespace, "made", frame.op(torch.neg, x))
    effects.set_global(namespace, "old", None)
    effects.set_cell(CellVariable(None, cell, source=Constant(cell, "total")), C(5))
    effects.set_cell(CellVariable(None, emptied), None)
    frame.print(frame.returns(C(None))).body([ones()])
    assert list(namespace) == ["made"]
    assert torch.equal(namespace["made"], -ones())
    assert cell.cell_contents == 5
    with pytest.raises(ValueError, match="empty"):
        emptied.cell_contents  # noqa: B018


def test_containers_keep_their_identity() -> None:
    frame = FrameBuilder()
    x = frame.tensor("x")
    frame.parameters += ["xs", "d"]
    xs = ListVariable([C(1)], source=Local("xs"), original=())
    mapping = DictVariable({}, source=Local("d"))
    xs.items += [frame.op(torch.neg, x), xs]
    mapping.items[DictKey("xs", C("xs"))] = xs
    frame.side_effects.contents_changed(xs)
    frame.side_effects.contents_changed(mapping)
    real: list[Any] = []
    real_mapping: dict[str, Any] = {"gone": 1}
    assert frame.print(frame.returns(xs)).body([ones(), real, real_mapping]) is real
    assert real[0] == 1
    assert torch.equal(real[1], -ones())
    assert real[2] is real
    assert list(real_mapping) == ["xs"]
    assert real_mapping["xs"] is real


def test_what_was_lost_is_named_as_the_user_knows_it() -> None:
    box, xs = ObjectVariable(None, Box, source=Local("box")), ListVariable([], source=Local("xs"))
    effects = [
        AttrSet(box, "count", C(1)),
        AttrSet(box, "count", C(2)),
        ContentsChanged(xs),
        GlobalSet({}, "total", C(1)),
        Called(BuiltinVariable(print), ()),
        CellSet(CellVariable(), C(1)),
    ]
    assert lost_effects(effects) == "The changes to `box.count`, `xs`, global `total`, calls"
    assert lost_effects(effects[-1:]) == "The changes to closed-over variables"
