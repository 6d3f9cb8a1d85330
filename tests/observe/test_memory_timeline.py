"""Tests of minidynamo/observe/memory_timeline.py."""

from __future__ import annotations

import xml.etree.ElementTree

import pytest
import torch

import minidynamo
from minidynamo.errors import ArgumentError
from minidynamo.observe.memory_timeline import MemoryTimeline, Series, record_memory

KIB = 2**10


def test_allocations_and_releases_are_counted():
    def run():
        x = torch.empty(KIB, dtype=torch.float32)
        y = torch.empty(2 * KIB, dtype=torch.float32)
        del x
        return y.numel()

    series = record_memory(run)
    assert series.peak == 12 * KIB and series.bytes[-1] == 0 and series.bytes[0] == 0


def layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(*[layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.Tanh())])


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_of_a_model_is_measured_both_ways(compiled):
    model, x = layers(), torch.rand(128, 64)
    if compiled:
        minidynamo.compile(model, backend="aot_eager")
    timeline = minidynamo.memory_timeline(model, x, backend=None if compiled else "aot_eager")
    assert list(timeline) == ["eager", "compiled"]
    activations = 4 * 128 * 64 * 4
    assert all(series.after_forward >= activations for series in timeline.values())
    assert timeline["compiled"].peak <= timeline["eager"].peak
    assert all(p.grad is None for p in model.parameters())
    assert (model.__dict__.get("_compiled_call_impl") is not None) == compiled
    lines = str(timeline).splitlines()
    assert len(lines) == 3 and lines[1].startswith("eager") and "KiB" in lines[1]


def test_functions_and_further_ways():
    def f(x):
        return x.sin().cos()

    x = torch.rand(1000, requires_grad=True)
    timeline = minidynamo.memory_timeline(f, x, backend="eager", twice=lambda x: f(f(x)))
    assert list(timeline) == ["eager", "compiled", "twice"] and x.grad is None
    assert timeline["twice"].after_forward > timeline["eager"].after_forward
    forward = minidynamo.memory_timeline(minidynamo.compile(f, backend="eager"), x.detach(), backward=False)
    assert forward["compiled"].backward_start == len(forward["compiled"].bytes) - 1 or forward["compiled"].peak >= 4000


def series(*values):
    return Series(values, len(values) // 2)


def test_the_figure_is_a_picture(tmp_path):
    timeline = MemoryTimeline(eager=series(0, 2**20, 3 * 2**20, 0), compiled=series(0, 2**20, 0))
    path = timeline.save(tmp_path / "memory.svg")
    root = xml.etree.ElementTree.parse(path).getroot()
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert tags[0] == "svg" and tags.count("polyline") == 2 and tags.count("circle") == 2
    assert "eager: peak 3.00 MiB" in timeline.svg()
    assert timeline["eager"].at(1.0) == 0 and timeline["eager"].peak_position == pytest.approx(2 / 3)


def test_small_programs_are_counted_in_kilobytes():
    timeline = MemoryTimeline(eager=series(0, 512, 1536, 0))
    assert "1.50 KiB" in str(timeline) and "peak 1.50 KiB" in timeline.svg() and "MiB" not in timeline.svg()
    assert "1,024.00 KiB" not in str(MemoryTimeline(eager=series(0, 2**20, 0)))


def test_other_formats_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"MD410(?s:.*)svg"):
        MemoryTimeline(eager=series(0, 4, 0)).save(tmp_path / "memory.png")
