"""Tests of minidynamo/tracer/capture/rerun.py: residual programs whose graph raises, or might raise."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch

from minidynamo.graph.boxed import make_boxed
from minidynamo.graph.marks import COMPUTES_FIRST
from minidynamo.tracer.capture.rerun import RerunOptions
from minidynamo.variables.base import ConstantVariable, VariableTracker
from tests.tracer.frame_builder import Box, FrameBuilder, ones


def _failing(boxed: list[Any]) -> Any:
    boxed.clear()
    raise RuntimeError("out of memory")


def _counting_frame() -> tuple[FrameBuilder, VariableTracker]:
    frame = FrameBuilder()
    x = frame.tensor("x")
    box = frame.object("m", Box)
    frame.side_effects.set_attr(box, "count", ConstantVariable(1))
    return frame, frame.op(torch.neg, x)


def test_without_effects_an_error_passes_through() -> None:
    frame = FrameBuilder()
    residual = frame.print(
        frame.returns(frame.op(torch.neg, frame.tensor("x"))), graph=_failing, rerun=RerunOptions(run=print)
    )
    with pytest.raises(RuntimeError, match="out of memory") as caught:
        residual.body([ones()])
    assert not hasattr(caught.value, "__notes__")


def test_with_pending_effects_the_frame_runs_again_as_written() -> None:
    frame, result = _counting_frame()
    runs: list[list[Any]] = []

    def native(boxed: list[Any]) -> str:
        runs.append(boxed)
        return "native"

    residual = frame.print(frame.returns(result), graph=_failing, rerun=RerunOptions(run=native))
    x, box = ones(), Box()
    assert residual.body([x, box]) == "native"
    assert runs == [[x, box]]
    assert box.__dict__ == {"count": 0}


def test_a_frame_with_handlers_runs_again_so_that_they_see_the_error() -> None:
    frame = FrameBuilder()
    traced = frame.returns(frame.op(torch.neg, frame.tensor("x")))
    residual = frame.print(
        traced, graph=_failing, rerun=RerunOptions(run=lambda boxed: "handled", even_without_effects=True)
    )
    x = ones()
    assert residual.body([x]) == "handled"


def test_arguments_die_early_even_if_the_frame_might_run_again() -> None:
    frame, result = _counting_frame()
    residual = frame.print(frame.returns(result), graph=_failing, rerun=RerunOptions(run=lambda boxed: "native"))
    with pytest.raises(RuntimeError, match="out of memory") as caught:
        residual.body([ones(), Box()])
    assert "already been freed" in caught.value.__notes__[0]


def test_the_value_is_right_when_the_graph_does_not_fail() -> None:
    frame, result = _counting_frame()
    box = Box()
    made = frame.print(frame.returns(result), rerun=RerunOptions(run=lambda boxed: "native")).body([ones(), box])
    assert torch.equal(made, -ones())
    assert box.__dict__ == {"count": 1}


@pytest.mark.parametrize("why", ["given up", "written", "no native form"])
def test_a_frame_that_cannot_run_again_says_what_was_lost(why: str) -> None:
    frame, result = _counting_frame()
    if why == "given up":
        frame.op(torch.neg, frame.tensors("xs", 1, given_up=True).items[0])
    if why == "written":
        next(iter(frame.graph.nodes)).meta["mutates"] = True
    native = None if why == "no native form" else print
    residual = frame.print(frame.returns(result), graph=_failing, rerun=RerunOptions(run=native))
    with pytest.raises(RuntimeError, match="out of memory") as caught:
        residual.body([ones(), Box(), [ones()]][: len(frame.parameters)])
    assert caught.value.__notes__[-1:] == ["The changes to `m.count` of Net.step before this error were not replayed."]


@pytest.mark.parametrize("computes_first", [True, False])
@pytest.mark.parametrize("may_raise", [True, False])
def test_a_graph_that_shows_what_it_does_is_not_run_under_hooks_if_it_may_raise(
    may_raise: bool, computes_first: bool
) -> None:
    frame, result = _counting_frame()
    traced = replace(frame.returns(result), may_raise=may_raise)
    assert traced.graph is not None
    if computes_first:
        traced.graph.meta[COMPUTES_FIRST] = True
    residual = frame.print(traced, graph=make_boxed(traced.graph), rerun=RerunOptions(run=lambda boxed: "native"))
    box = Box()
    assert torch.equal(residual.body([ones(), box]), -ones())
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        made = residual.body([ones(), box])
    assert (made == "native") if may_raise and not computes_first else torch.equal(made, -ones())


def test_a_run_as_written_in_place_of_the_graph_holds_nothing() -> None:
    frame, result = _counting_frame()
    traced = replace(frame.returns(result), may_raise=True)

    def native(boxed: list[Any]) -> bool:
        watched = weakref.ref(boxed[0])
        boxed.clear()
        return watched() is None

    residual = frame.print(traced, rerun=RerunOptions(run=native))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        assert residual.body([ones(), Box()]) is True
