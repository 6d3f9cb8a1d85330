"""Tests of minidynamo/memory/graph_plan.py: the plans of graphs that run operation by operation."""

from __future__ import annotations

import torch

import minidynamo


def program(x, w):
    y = x @ w
    first, second = y.chunk(2)
    z = first.sin() + second
    return z.view(-1)


def test_the_plan_of_a_captured_graph():
    f = minidynamo.compile(program, backend="eager")
    f(torch.ones(4, 4), torch.ones(4, 4))
    (plan,) = f.memory_plan()
    assert plan.stage == "captured" and [buffer.bytes for buffer in plan.inputs] == [64, 64]
    product, sine, total = (buffer for buffer in plan.buffers if buffer.born >= 0)
    assert (product.bytes, sine.bytes, total.bytes) == (64, 32, 32)
    assert product.dies == sine.dies == total.born and total.dies is None
    assert "z = first.sin() + second" in total.where.comment()
    assert plan.peak() == 64 + 32 + 32


def test_the_plans_of_forward_and_backward():
    f = minidynamo.compile(lambda x, w: program(x, w).sum(), backend="aot_eager")
    x, w = torch.ones(64, 64, requires_grad=True), torch.ones(64, 64, requires_grad=True)
    f(x, w).backward()
    x.grad = w.grad = None
    forward, backward = f.memory_plan()
    assert (forward.stage, backward.stage) == ("forward", "backward")
    measured = minidynamo.observe.memory_timeline.record_memory(lambda: f(x, w).backward()).peak
    assert abs(f.memory_plan().peak - measured) <= 0.02 * measured


def test_sizes_that_change_are_those_of_the_first_call():
    f = minidynamo.compile(lambda x: x.exp(), backend="aot_eager", dynamic=True)
    f(torch.ones(5, 4))
    (plan,) = f.memory_plan()
    assert plan.peak() == 80


def test_an_unused_input_dies_at_once():
    f = minidynamo.compile(lambda xs: xs[1] + 1, backend="eager", steal=("xs",))
    f([torch.ones(2), torch.ones(2)])
    (plan,) = f.memory_plan()
    assert plan.peak() == 8
