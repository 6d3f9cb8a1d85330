"""Tests of minidynamo/codegen/lowering/products.py: small matrix products as loops."""

from __future__ import annotations

import math

import pytest
import torch

from minidynamo.codegen.ir.loops import Extern, Loops
from tests.codegen.graphs import check, lower


@pytest.fixture(autouse=True)
def lowered(large, monkeypatch):
    """Lowers small products."""
    monkeypatch.undo()


def is_extern(function, *args):
    program = lower(function, *args)
    return any(isinstance(node, Extern) and not node.is_view for node in program.nodes)


def linear(x, weight, bias):
    return torch.nn.functional.linear(x, weight, bias)


@pytest.mark.cpp
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("m, k, n", [(1, 4, 128), (3, 1, 5), (1, 1, 1), (4, 32, 7), (2, 0, 3), (0, 2, 3)])
def test_values(m, k, n, dtype):
    torch.manual_seed(0)
    a, b, bias = (torch.randn(*shape, dtype=dtype) for shape in ((m, k), (n, k), (n,)))
    for function, args in (
        (torch.mm, (a, b.t())),
        (torch.mm, (a, b.t().contiguous())),
        (torch.mm, (a.t().contiguous().t(), b.t())),
        (linear, (a, b, bias)),
        (lambda x, u, v: torch.addmm(x, u, v).relu(), (bias, a, b.t())),
    ):
        check(function, *args)
    assert not is_extern(linear, a, b, bias)


@pytest.mark.cpp
def test_values_that_are_not_finite():
    a, b = torch.tensor([[math.inf, 1.0], [math.nan, 0.0]]), torch.tensor([[0.0, 1.0], [2.0, -math.inf]])
    check(torch.mm, a, b)


def test_a_product_joins_the_operations_around_it():
    def program(x, weight, bias):
        return linear(x.relu(), weight, bias).sigmoid() * 2

    nodes = lower(program, torch.ones(1, 8), torch.ones(4, 8), torch.ones(4)).nodes
    assert all(isinstance(node, Loops) or node.is_view for node in nodes)


@pytest.mark.parametrize(
    "function, shapes, dtype",
    [
        (torch.mm, [(16, 32), (32, 32)], torch.float32),
        (torch.mm, [(2, 2), (2, 2)], torch.bfloat16),
        (torch.mm, [(2, 2), (2, 2)], torch.int64),
        (lambda x, a, b: torch.addmm(x, a, b, alpha=2), [(2, 2)] * 3, torch.float32),
        (lambda x, a, b: torch.addmm(x, a, b, beta=0), [(2, 2)] * 3, torch.float32),
    ],
)
def test_calls_of_torch(function, shapes, dtype):
    assert is_extern(function, *(torch.ones(shape, dtype=dtype) for shape in shapes))
