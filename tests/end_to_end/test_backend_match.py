"""Code that was compiled by one backend is never run for another."""

from __future__ import annotations

import torch

import minidynamo
from minidynamo.testing import CompileCounter, no_recompile


def test_two_backends_of_one_function_compile_once_each():
    def f(x):
        return torch.relu(x) + 1

    first, second = CompileCounter(), CompileCounter()
    with_first, with_second = minidynamo.compile(f, backend=first), minidynamo.compile(f, backend=second)
    x = torch.randn(4)
    with_first(x)
    assert (first.frame_count, second.frame_count) == (1, 0)
    with_second(x)
    assert (first.frame_count, second.frame_count) == (1, 1)
    with no_recompile():
        for _ in range(3):
            assert torch.equal(with_first(x), with_second(x))
    assert (first.frame_count, second.frame_count) == (1, 1)


def test_a_callee_behind_a_break_is_compiled_by_the_backend_of_its_caller():
    def callee(x):
        x = x * 2
        minidynamo.graph_break()
        return x + 1

    def f(x):
        return callee(x + 1) - 1

    first, second = CompileCounter(), CompileCounter()
    with_first, with_second = minidynamo.compile(f, backend=first), minidynamo.compile(f, backend=second)
    x = torch.randn(4)
    assert torch.equal(with_first(x), with_second(x))
    assert first.frame_count == second.frame_count > 1
    assert first.op_count == second.op_count == 4
    with no_recompile():
        assert torch.equal(with_second(x), with_first(x))
