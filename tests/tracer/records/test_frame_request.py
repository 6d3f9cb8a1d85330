"""Tests of minidynamo/tracer/records/frame_request.py: the positions of a frame's values in a request."""

from minidynamo.guards.source import Local
from minidynamo.tracer.records.frame_request import FrameRequest


def f(x, *args, y, **kwargs):
    pass


def test_slots_arrive_under_their_own_names_or_those_of_the_program():
    request = FrameRequest(f.__code__, {}, {}, parameters={".0": "iterator"})
    assert request.local("x") == Local("x") and request.local(".0") == Local("iterator")


def test_further_arguments_arrive_spread_in_a_call_alone():
    assert FrameRequest(f.__code__, {}, {}).spread() == {Local("args"), Local("kwargs")}
    assert not FrameRequest(f.__code__, {}, {}, index=2).spread()


def test_a_frame_is_called_as_the_user_knows_it():
    assert FrameRequest(f.__code__, {}, {}).title == "f"
    assert FrameRequest(f.__code__, {}, {}, name="Model.forward").title == "Model.forward"
