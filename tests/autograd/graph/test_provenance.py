"""Tests of minidynamo/autograd/graph/provenance.py: the user's lines on forward and backward nodes, and formulas for
tensors with data."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import fx

import minidynamo
from minidynamo.autograd.aot import aot_graphs
from minidynamo.autograd.graph.provenance import SHARED_AMONG_EQUALS
from minidynamo.compat import FakeTensorMode
from minidynamo.errors import UserLocation
from tests.autograd.programs import fake

INF, NAN = float("inf"), float("nan")
VALUES = [1.0, 2.0, 2.0], [1.0, INF, 3.0], [NAN, 1.0, NAN], [0.0, 2.0, 0.0]
# The gradients of products depend on data as well; they are calls (autograd/trace/fallback_op.py).
PROGRAMS = {
    "max": torch.Tensor.max,
    "min": torch.Tensor.min,
    "median": torch.Tensor.median,
    "nanmedian": torch.Tensor.nanmedian,
    "prod": torch.Tensor.prod,
    "prod of rows": lambda x: x.prod(0),
    "cumprod": lambda x: x.cumprod(0).sum(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_eager(name):
    program = PROGRAMS[name]
    compiled = minidynamo.compile(lambda x: program(x), backend="aot_eager", fullgraph=True)
    for values, incoming in itertools.product(VALUES, (1.0, INF)):
        found = []
        for function in (program, compiled):
            with_gaps = torch.tensor([values, values]).T.contiguous()[:, 0]  # gradients have no gaps
            x = with_gaps.requires_grad_()
            (gradient,) = torch.autograd.grad(function(x), x, torch.tensor(incoming))
            found.append(gradient)
        torch.testing.assert_close(*found, rtol=0, atol=0, equal_nan=True)
        assert found[0].stride() == found[1].stride()
    assert compiled.stats.graphs == 1


def test_the_formulas_have_the_names_of_gradient_functions():
    x = torch.ones(3, requires_grad=True)
    made = [x.max(), x.min(), x.median(), x.nanmedian()]
    assert {value.grad_fn.name() for value in made} == SHARED_AMONG_EQUALS


def test_forward_and_backward_nodes_carry_the_line_that_caused_them():
    def program(x, w):
        y = x @ w
        z = y.sin()
        z.mul_(2)
        return (z.sum(),)

    gm = fx.symbolic_trace(program)
    line = 0
    for node in gm.graph.nodes:
        if node.op.startswith("call"):
            line += 1
            node.meta["user_location"] = UserLocation("train.py", line, node.name)
    mode = FakeTensorMode()
    args = [fake(mode, torch.randn(3, 3, requires_grad=True)) for _ in range(2)]
    graphs = aot_graphs(gm, args)

    def lines(module):
        calls = [node for node in module.graph.nodes if node.op == "call_function"]
        return {node.name: getattr(node.meta.get("user_location"), "lineno", None) for node in calls}

    assert lines(graphs.forward) == {"mm": 1, "sin": 2, "mul": 3, "sum_1": 4}
    backward = lines(graphs.backward)
    assert [backward[name] for name in ("expand", "mul_1", "cos", "mul_2")] == [4, 3, 2, 2]
    assert {backward[name] for name in backward if name.startswith(("mm", "t"))} == {1}
    assert [value.user_location.lineno for value in graphs.signature.saved if value.op != "input"] == [1]
    assert "train.py:1 in matmul" in str(graphs.signature.saved[-1])


def test_without_locations_nothing_is_marked():
    gm = fx.symbolic_trace(lambda x: (x.sin(),))
    graphs = aot_graphs(gm, [fake(FakeTensorMode(), torch.randn(3, requires_grad=True))])
    assert not any("user_location" in node.meta for node in graphs.forward.graph.nodes)
