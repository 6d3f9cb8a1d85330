"""Tests of minidynamo/tracer/records/traced_frame.py."""

import dataclasses

import pytest
import torch

from minidynamo.errors import InternalError
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.source import Computed, Drawn, Local
from minidynamo.tracer.records.side_effects import Draw
from minidynamo.tracer.records.traced_frame import Break, Null, Return
from tests.tracer.frame_builder import BREAK, FrameBuilder


def test_a_frame_records_inputs_outputs_and_its_end() -> None:
    frame = FrameBuilder()
    x = frame.tensor("x")
    result = frame.op(torch.neg, x)
    traced = frame.returns(result)
    assert isinstance(traced.exit, Return)
    assert traced.exit.value is result
    assert traced.outputs == (result,)
    assert [(given.source, given.variable, given.is_emptied) for given in traced.inputs] == [(Local("x"), x, False)]
    assert traced.graph is not None


def test_a_break_tells_where_and_why() -> None:
    frame = FrameBuilder()
    x = frame.tensor("x")
    cut = frame.breaks({"x": x}, stack=[Null(), x], compiled_callee=1).exit
    assert isinstance(cut, Break)
    assert cut.diagnostic is BREAK
    assert cut.compiled_callee == 1
    assert cut.stack[1] is x


def test_records_are_compared_by_identity_and_cannot_be_changed() -> None:
    frame = FrameBuilder()
    traced = frame.returns(frame.tensor("x"))
    assert traced != dataclasses.replace(traced)
    with pytest.raises(dataclasses.FrozenInstanceError):
        traced.name = "other"  # type: ignore[misc]


def test_no_guard_reads_a_number_that_is_drawn_behind_it() -> None:
    frame = FrameBuilder()
    traced = frame.returns(frame.op(torch.neg, frame.tensor("x")))
    drawn = Drawn("drawn_0")
    traced.side_effects.draw(Draw(drawn, Local("m"), Computed("{0}.random()", (Local("m"),)), late=False))
    guard = Guard(Computed("{0} < 1", (drawn,)), GuardKind.RELATION, True)
    assert dataclasses.replace(traced, guards=(Guard(Local("m"), GuardKind.TYPE, int),)).all_guards()
    with pytest.raises(InternalError, match="decides by a random number"):
        dataclasses.replace(traced, guards=(guard,)).all_guards()
