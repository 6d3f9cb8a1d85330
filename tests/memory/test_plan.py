"""Tests of minidynamo/memory/plan.py: records of buffers and saved tensors, and their sums."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.memory.plan import MemoryReport, PlanRecorder, SavedTensors, SavedValue


def recorded():
    """x is an input; a is new, b reuses a's memory, v is a view of b; b is returned."""
    recorder = PlanRecorder("forward")
    recorder.add("x", 100)
    recorder.step("allocate a")
    recorder.add("a", 40, "sin")
    recorder.free(["x"])
    recorder.step("reuse a")
    recorder.add("b", 40, "cos", reuses="a")
    recorder.step("view")
    recorder.view("v", "b")
    recorder.step("allocate c")
    recorder.add("c", 24, "exp")
    recorder.free(["v", "c"])
    recorder.step("end")
    return recorder.plan()


def test_buffers_live_from_birth_to_death():
    plan = recorded()
    lives = {buffer.name: (buffer.born, buffer.dies, buffer.reuses) for buffer in plan.buffers}
    assert lives == {"x": (-1, 0, ""), "a": (0, 0, ""), "b": (1, None, "a"), "c": (3, 3, "")}
    assert plan.usage() == [40, 40, 40, 64, 40, 40] and plan.peak() == 64
    assert [buffer.name for buffer in plan.inputs] == ["x"]


def test_inputs_that_nobody_else_holds_die_with_their_last_use():
    plan = recorded()
    assert plan.usage({"x"}) == [40, -60, -60, -36, -60, -60]
    assert plan.peak({"x"}) == 40


def test_a_view_keeps_memory_alive():
    recorder = PlanRecorder("forward")
    recorder.step("a")
    recorder.add("a", 8)
    recorder.view("v", "a")
    recorder.free(["a"])
    recorder.step("b")
    recorder.free(["v"])
    assert recorder.plan().buffers[0].dies == 1


def test_a_gradient_is_gone_where_it_is_added_to_another():
    recorder = PlanRecorder("backward")
    recorder.step("first")
    recorder.add("a", 40)
    recorder.view("v", "a")
    recorder.free(["a"])
    recorder.hand_over("v")
    recorder.step("second")
    recorder.add("b", 24)
    recorder.hand_over("b")
    plan = recorder.plan()
    assert [(buffer.dies, buffer.accumulated_at) for buffer in plan.buffers] == [(None, 0), (None, 1)]
    assert plan.usage() == [40, 64, 64] and plan.usage(accumulating=True) == [40, 24, 0]
    report = MemoryReport([plan])
    assert (report.peak, report.accumulating_peak) == (64, 40)
    text = str(report)
    assert "never (1)" in text and text.endswith("64 bytes; 40 bytes if gradients are added to a present .grad")


def test_memory_that_is_used_further_on_is_not_gone_when_it_is_handed_over():
    recorder = PlanRecorder("backward")
    recorder.step("first")
    recorder.add("a", 40)
    recorder.view("v", "a")
    recorder.hand_over("v")
    recorder.step("second")
    recorder.free(["a"])
    assert recorder.plan().buffers[0].accumulated_at == 1


def test_parts_of_one_backward_are_no_two_backwards():
    def plan(stage, name, size):
        recorder = PlanRecorder(stage)
        recorder.add(name, 8)
        recorder.step("step")
        recorder.add("made", size)
        return recorder.plan()

    forward, whole, part, other = (
        plan(*args)
        for args in (("forward", "x", 4), ("backward", "s", 40), ("backward", "s", 16), ("backward", "t", 16))
    )
    assert MemoryReport([forward, whole]).peak == MemoryReport([forward, part, whole]).peak == 44
    assert MemoryReport([forward, other, forward, whole]).peak == 64


def test_the_table():
    text = str(MemoryReport([recorded()]))
    assert text.splitlines()[0] == "forward graph, 5 steps"
    assert "of a" in text and "never" in text and text.endswith("predicted peak: 64 bytes")


@pytest.mark.cpp
@pytest.mark.parametrize("backward", [True, False])
def test_the_predicted_peak_is_the_measured_one(backward):
    model = torch.nn.Sequential(
        *[layer for _ in range(4) for layer in (torch.nn.Linear(128, 128), torch.nn.GELU())], torch.nn.LayerNorm(128)
    )
    x = torch.rand(256, 128)

    def loss(x):
        return model(x).square().mean()

    f = minidynamo.compile(loss)
    with torch.set_grad_enabled(backward):
        series = minidynamo.observe.memory_timeline.record_step(f, [x], backward=False)
        if backward:
            series = minidynamo.observe.memory_timeline.record_step(f, [x])
    report = f.memory_plan()
    assert [plan.stage for plan in report] == (["forward", "backward"] if backward else ["inference"])
    assert abs(report.peak - series.peak) <= 0.02 * series.peak
    assert minidynamo.memory_plan(f).peak == report.peak


def test_the_table_has_the_largest_first_and_sums_up():
    small = SavedValue("x", (2,), torch.float32, 8, "input", None, "an input")
    large = SavedValue("exp", (4,), torch.float32, 16, "aten.exp.default", None, "too dear")
    saved = SavedTensors([small, large])
    assert saved.bytes == 24
    assert str(saved).splitlines() == [
        "tensor              bytes  made by           line  why",
        "exp     float32[4]     16  aten.exp.default        too dear",
        "x       float32[2]      8  input                   an input",
        "2 tensors, 24 bytes, 16 bytes without inputs",
    ]
    assert str(SavedTensors()) == "no saved tensors"
