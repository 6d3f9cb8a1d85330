"""Tests of minidynamo/codegen/memory/report.py."""

from __future__ import annotations

import pytest
import torch

import minidynamo


@pytest.mark.cpp
def test_each_buffer_with_its_life_and_makers():
    def f(x, w):
        return torch.softmax(x @ w, -1) @ w

    compiled = minidynamo.compile(f)
    compiled(torch.rand(8, 8), torch.rand(8, 8))
    (plan,) = compiled.memory_plan()
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    assert {"x", "w"} == {buffer.name for buffer in plan.inputs}
    first, soft, last = (buffer for buffer in plan.buffers if buffer.born >= 0)
    assert (first.operations, soft.operations, last.operations) == ("mm", "softmax", "mm")
    assert soft.reuses == first.name and soft.dies is not None and last.dies is None
    assert last.where is not None and "torch.softmax(x @ w, -1) @ w" in last.where.comment()
    assert all(buffer.bytes == 256 for buffer in buffers.values())
    assert plan.peak() == 512
