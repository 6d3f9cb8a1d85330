"""Uncapturable operations run eagerly, in their original place, and the rest is compiled once."""

from __future__ import annotations

import pytest
import torch

import minidynamo
from minidynamo.errors import Unsupported
from minidynamo.testing import CompileCounter, assert_same_as_eager, no_recompile


def vector():
    return torch.randn(4)


def test_a_loop_that_prints_in_a_try_region(capsys):
    def f(t):
        for _ in range(3):
            try:
                t = t + 1
                minidynamo.graph_break()
                print(t.sum().item())
                t = t * 2
            except ValueError:
                t = t - 1
        return t

    # The first iteration up to the break, the rest of an iteration, and a whole iteration of the loop after a resume.
    compiled = assert_same_as_eager(f, vector, calls=2, graphs=3, recompiles=0)
    capsys.readouterr()
    x = torch.ones(4)
    with no_recompile():
        result = compiled(x)
    printed = capsys.readouterr().out
    assert torch.equal(result, f(x))
    assert printed == capsys.readouterr().out
    assert len(printed.splitlines()) == 3


def test_a_condition_on_a_tensor():
    def f(t):
        t = t * 2
        if t.sum() > 0:
            return t + 1
        return t - 1

    assert_same_as_eager(f, lambda: torch.ones(4), lambda: -torch.ones(4), calls=2, graphs=3, breaks=1, recompiles=0)


def test_fullgraph_refuses_with_the_users_line():
    counter = CompileCounter()

    @minidynamo.compile(backend=counter, fullgraph=True)
    def f(t):
        if t.sum() > 0:
            return t + 1
        return t - 1

    with pytest.raises(Unsupported, match="MD2") as refused:
        f(torch.ones(4))
    assert "if t.sum() > 0:" in str(refused.value)
    assert counter.frame_count == 0


# Builtins that branch on the value of a tensor: one break. The rest has a version for each kind of result.
DECISIONS = {
    "max": (lambda x: max(x.sum(), 0.0) + x, 3),
    "min": (lambda x: min(1.0, x.sum()) + x, 3),
    "max by a key": (lambda x: max(x[0:2], x[2:4], key=torch.sum) + 1, 2),
    "sorted": (lambda x: sorted([x[0], x[1]])[0] + 1, 2),
    "in": (lambda x: x + (x[0] in [1.0, 2.0]), 3),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_builtins_that_decide_by_a_tensor(name):
    program, graphs = DECISIONS[name]
    make = [lambda scale=scale: torch.tensor([1.0, 3.0, -2.0, 1.5]) * scale for scale in (1, -1, 0.1, 0, 2)]
    options = {"graphs": graphs, "breaks": 1, "recompiles": graphs - 2, "backward": False}
    assert_same_as_eager(program, *make, calls=2, **options)
