"""Tests of minidynamo/autograd/reinplace/delay_results.py: the results that are delayed, and the operations before
their new positions."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from minidynamo.autograd.reinplace.delay_results import postpone


def traced(program):
    """Returns a graph of the ATen operations of `program` on a matrix."""
    return make_fx(program, tracing_mode="fake")(torch.rand(16, 16))


def order(graph: fx.Graph) -> list[str]:
    """Returns the names of the operations, without `getitem` on results."""
    return [node.target._schema.name.removeprefix("aten::") for node in graph.nodes if _is_operation(node)]


def _is_operation(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is not operator.getitem


PROGRAMS = {
    "behind the last reader": (
        lambda x: (lambda y: [y.sigmoid(), y @ x][::-1])(x.sin()),
        ["sin", "mm", "sigmoid"],
    ),
    "with what can lie in one memory": (
        lambda x: (lambda y: [y.sigmoid() - x, y @ x][::-1])(x.sin()),
        ["sin", "mm", "sigmoid", "sub"],
    ),
    "not behind what it lets die": (
        lambda x: (lambda y: [y > 0, x @ x][::-1])(x.sin()),
        ["sin", "gt", "mm"],
    ),
    "with all that is computed for it": (
        lambda x: (lambda y: [y.exp() - y.cos(), y.sum()][::-1])(x.sin()),
        ["sin", "sum", "exp", "cos", "sub"],
    ),
    "with what of that comes earlier": (
        lambda x: (lambda y: [(z := y.exp() + 1), y.sum(), z - y.cos()][1:])(x.sin()),
        ["sin", "sum", "exp", "add", "cos", "sub"],
    ),
    "not with what takes more memory": (
        lambda x: (lambda y: [y.exp() > 1, y @ x][::-1])(x.sin()),
        ["sin", "exp", "gt", "mm"],
    ),
    "not with random numbers": (
        lambda x: (lambda y: [torch.rand_like(y).sin(), torch.rand_like(y), y @ x])(x.sin()),
        ["sin", "rand_like", "sin", "rand_like", "mm"],
    ),
    "not behind writes": (
        lambda x: (lambda y: [y.sigmoid(), y.add_(1), y @ x])(x.sin()),
        ["sin", "sigmoid", "add_", "mm"],
    ),
    "behind all of several results": (
        lambda x: (lambda y: [y > 0, *y.max(0)][::-1])(x.sin()),
        ["sin", "max", "gt"],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_wait(name):
    program, expected = PROGRAMS[name]
    module = traced(program)
    postpone(module.graph)
    module.graph.lint()
    assert order(module.graph) == expected
