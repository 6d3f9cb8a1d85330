"""The acceptance checks of closures: cells in root and inlined frames, and their introspection."""

from __future__ import annotations

import pytest
import torch

from minidynamo import compile as compile_function
from minidynamo import comptime
from minidynamo.testing import CompileCounter, assert_same_as_eager, no_recompile


def ones():
    return torch.ones(2)


def test_CL_1_inner_function_reads_an_argument():
    def f(x):
        g = lambda y: y + x
        return g(x * 2)

    assert_same_as_eager(f, ones, graphs=1, breaks=0, fullgraph=True)
    assert torch.equal(compile_function(f, backend="eager")(ones()), torch.full((2,), 3.0))


def test_CL_2_nonlocal_write_in_an_inlined_function():
    def f(x):
        k = 1

        def g():
            nonlocal k
            k = k + x.sum()
            return k

        g()
        return k + g()

    assert_same_as_eager(f, ones, graphs=1, breaks=0, fullgraph=True)
    assert compile_function(f, backend="eager")(ones()) == 8.0


def test_CL_3_comptime_print_of_a_closed_over_argument(capsys):
    def plain(x, n):
        comptime.print(x)
        comptime.print(n)
        return x + n

    def closed_over(x, n):
        comptime.print(x)
        comptime.print(n)
        return (lambda: x + n)()

    texts = []
    for f in (plain, closed_over):
        compiled = compile_function(f, backend="eager")
        for _ in range(2):
            compiled(ones(), 3)
        texts.append(capsys.readouterr().out)
    assert texts == ["Tensor(shape=(2,), dtype=torch.float32)\n3\n"] * 2


def test_CL_4_early_and_late_binding():
    def f(x):
        early = [lambda i=i: i * x for i in range(1, 4)]
        late = [lambda: i * x for i in range(1, 4)]  # noqa: B023 (late binding is meant)
        return [g() for g in early], [g() for g in late]

    assert_same_as_eager(f, ones, graphs=1, breaks=0, fullgraph=True)


def test_CL_5_cell_from_outside_is_written():
    state = torch.zeros(2)

    def f(x):
        nonlocal state
        state = state + x
        return state * 2

    counter = CompileCounter()
    compiled = compile_function(f, backend=counter, fullgraph=True)
    assert torch.equal(compiled(ones()), torch.full((2,), 2.0))
    assert torch.equal(compiled(ones()), torch.full((2,), 4.0))
    assert torch.equal(state, torch.full((2,), 2.0))
    assert counter.frame_count == 1


def test_CL_6_changed_contents_of_a_cell_are_noticed():
    n, t = 2, ones()
    f = lambda x: x * n + t
    counter = CompileCounter()
    compiled = compile_function(f, backend=counter, fullgraph=True)
    for value in (2, 3, 4):
        n = value
        assert torch.equal(compiled(ones()), torch.full((2,), value + 1.0))
    assert counter.frame_count <= 3
    with no_recompile():
        t = torch.full((2,), 5.0)
        assert torch.equal(compiled(ones()), torch.full((2,), 9.0))


def test_CL_8_print_locals_shows_what_cells_hold(capsys):
    def f(x, n):
        m = n + 1

        def g():
            comptime.print_locals()
            return x * n * m

        comptime.print_locals()
        return g()

    compiled = compile_function(f, backend="eager", fullgraph=True)
    compiled(ones(), 3)
    shown = capsys.readouterr().out.splitlines()
    for line in ("n = 3", "m = 4", "x = Tensor(shape=(2,), dtype=torch.float32)"):
        assert shown.count(line) == 2
    assert not any("Cell" in line for line in shown)


def test_emptied_cells_are_noticed_at_the_next_call():
    value = 2

    def clear():
        nonlocal value
        del value

    def f(x):
        return x * value

    compiled = compile_function(f, backend="eager")
    assert torch.equal(compiled(ones()), torch.full((2,), 2.0))
    clear()
    with pytest.raises(NameError, match="value"):
        compiled(ones())
    value = 5
    assert torch.equal(compiled(ones()), torch.full((2,), 5.0))
