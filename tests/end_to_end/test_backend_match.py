"""Code that was compiled by one backend is never run for another."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.events import MinidynamoNotice
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


def test_settings_that_change_code_are_part_of_the_match():
    counter = CompileCounter()

    @minidynamo.compile(backend=counter)
    def f(x):
        x = x + 1
        minidynamo.graph_break()
        return x * 2

    x = torch.randn(4)
    f(x)
    assert counter.frame_count == 2
    with minidynamo.config.patch(fuse=False):
        f(x)
        assert counter.frame_count == 4
        assert "backend: expected CompileCounter, got CompileCounter with fuse=False" in f.why()
        with no_recompile():
            f(x)
    with no_recompile():
        f(x)
        with minidynamo.config.patch(fuse=False):
            f(x)
        with minidynamo.config.patch(verbose=True):
            f(x)
    assert "backend: CompileCounter with fuse=False" in f.guards()


def test_settings_given_to_compile_hold_whatever_the_others_are():
    seen = []

    def backend(gm, example_inputs):
        seen.append(minidynamo.config.fuse)
        return minidynamo.make_boxed_func(gm.forward)

    f = minidynamo.compile(lambda x: x + 1, backend=backend, options={"fuse": False})
    f(torch.ones(2))
    with minidynamo.config.patch(fuse=False), no_recompile():
        f(torch.ones(2))
    assert seen == [False] and minidynamo.config.fuse


def test_disable_runs_as_written_and_forgets_nothing():
    seen = []

    @minidynamo.compile(backend="eager")
    def f(x):
        if not minidynamo.is_compiling():
            seen.append("as written")
        return x + 1

    f(torch.ones(2))
    with minidynamo.config.patch(disable=True):
        f(torch.ones(2))
        assert seen == ["as written"]
    with no_recompile():
        f(torch.ones(2))
    assert seen == ["as written"]


def test_the_recompile_limit_counts_per_backend():
    counter = CompileCounter()
    f = minidynamo.compile(lambda x, n: x + n, backend=counter, recompile_limit=2)
    x = torch.ones(2)
    f(x, 1), f(x, 2)
    with minidynamo.config.patch(fuse=False):
        f(x, 1), f(x, 2)
    assert counter.frame_count == 4
    with pytest.warns(MinidynamoNotice, match=r"value of `n` \(3 times\)"):
        f(x, 3)
    assert counter.frame_count == 4
