"""Tests of minidynamo/tracer/records/traced_frame.py: the positions of a frame's values in a request, and the records
of a result."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from minidynamo.errors import InternalError
from minidynamo.guards.guard import Guard, GuardKind
from minidynamo.guards.source import Computed, Drawn, Local
from minidynamo.tracer.records.side_effects import Draw
from minidynamo.tracer.records.traced_frame import FrameRequest
from tests.tracer.frame_builder import FrameBuilder


def f(x, *args, y, **kwargs):
    pass


def test_slots_arrive_under_their_own_names_or_those_of_the_program():
    request = FrameRequest(f.__code__, {}, {}, parameters={".0": "iterator"})
    assert request.local("x") == Local("x") and request.local(".0") == Local("iterator")


def test_further_arguments_arrive_spread_in_a_call_alone():
    assert FrameRequest(f.__code__, {}, {}).starred() == {Local("args"), Local("kwargs")}
    assert not FrameRequest(f.__code__, {}, {}, index=2).starred()


def test_a_frame_is_called_as_the_user_knows_it():
    assert FrameRequest(f.__code__, {}, {}).title == "f"
    assert FrameRequest(f.__code__, {}, {}, name="Model.forward").title == "Model.forward"


def test_records_are_compared_by_identity() -> None:
    frame = FrameBuilder()
    traced = frame.returns(frame.tensor("x"))
    assert traced != dataclasses.replace(traced)


def test_no_guard_reads_a_number_that_is_drawn_behind_it() -> None:
    frame = FrameBuilder()
    traced = frame.returns(frame.op(torch.neg, frame.tensor("x")))
    drawn = Drawn("drawn_0")
    traced.side_effects.draw(Draw(drawn, Local("m"), Computed("{0}.random()", (Local("m"),)), may_be_skipped=False))
    guard = Guard(Computed("{0} < 1", (drawn,)), GuardKind.RELATION, True)
    assert dataclasses.replace(traced, guards=(Guard(Local("m"), GuardKind.TYPE, int),)).all_guards()
    with pytest.raises(InternalError, match="decides by a random number"):
        dataclasses.replace(traced, guards=(guard,)).all_guards()
