"""Tests of minidynamo/tracer/reconstruct/effects.py: each kind of effect, replayed on real values."""

from typing import Any

import torch

from minidynamo.guards.source import Local
from minidynamo.tracer.reconstruct.effects import lost_effects
from minidynamo.tracer.records.side_effects import AttrSet, Called, CellSet, ContentsChanged, GlobalSet
from minidynamo.variables.base import ConstantVariable
from minidynamo.variables.callables import BuiltinVariable, CellVariable
from minidynamo.variables.containers import DictKey, DictVariable, ListVariable
from minidynamo.variables.objects import ObjectVariable
from tests.tracer.frame_builder import Box, FrameBuilder, ones

C = ConstantVariable


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
