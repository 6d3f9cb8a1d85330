"""Tests of minidynamo/graph/higher_order.py: the functions that represent cond and checkpoints in a graph."""

from __future__ import annotations

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from minidynamo.graph.boxed import make_boxed
from minidynamo.graph.higher_order import (
    is_cond,
    is_reentrant,
    run_branch,
    run_checkpoint,
    run_reentrant_checkpoint,
    subgraphs_of,
)

TRUE, FALSE = torch.tensor(True), torch.tensor(False)


def graph_with_cond():
    """Builds cond(pred, x -> x + y, x -> x - y) of (x, y), in the tracer's form."""
    graph = fx.Graph()
    pred, x, y = (graph.placeholder(name) for name in ("pred", "x", "y"))
    modules = {
        "up": fx.symbolic_trace(lambda x, y: (x + y,)),
        "down": fx.symbolic_trace(lambda x, y: (x - y,)),
    }
    branches = [graph.create_node("get_attr", name) for name in modules]
    node = graph.call_function(run_branch, (pred, *branches, (x, y)))
    graph.output((node,))
    return fx.GraphModule(modules, graph)


def test_one_of_two_graphs_runs():
    x = torch.ones(3)
    assert torch.equal(run_branch(TRUE, lambda x: (x + 1,), lambda x: (x - 1,), (x,))[0], x + 1)
    assert torch.equal(run_branch(FALSE, lambda x: (x + 1,), lambda x: (x - 1,), (x,))[0], x - 1)


def test_nodes_are_recognised():
    gm = graph_with_cond()
    (node,) = filter(is_cond, gm.graph.nodes)
    assert subgraphs_of(gm, node) == (gm.up, gm.down)


def test_tracers_of_torch_see_its_own_operator():
    gm = graph_with_cond()
    traced = make_fx(gm, tracing_mode="fake")(TRUE, torch.ones(3), torch.ones(3))
    assert torch.ops.higher_order.cond in [node.target for node in traced.graph.nodes]
    for pred in (TRUE, FALSE):
        x, y = torch.randn(3), torch.randn(3)
        assert torch.equal(traced(pred, x, y)[0][0], gm(pred, x, y)[0][0])


def test_boxed_programs_choose_by_themselves():
    call = make_boxed(graph_with_cond())
    args = [FALSE, torch.ones(3), torch.ones(3)]
    ((result,),) = call(args)
    assert args == [] and torch.equal(result, torch.zeros(3))


def test_the_same_numbers_and_gradients():
    calls = []

    def subgraph(x):
        calls.append(x)
        return (torch.nn.functional.dropout(x.sin(), 0.5) * x,)

    x = torch.randn(8, requires_grad=True)
    torch.manual_seed(0)
    (expected,) = subgraph(x)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    torch.manual_seed(0)
    (actual,) = run_checkpoint(subgraph, (x,))
    assert torch.equal(actual, expected) and len(calls) == 2
    assert torch.equal(torch.autograd.grad(actual.sum(), x)[0], gradient) and len(calls) == 3


def test_traced_as_it_is():
    from torch.fx.experimental.proxy_tensor import make_fx  # noqa: PLC0415

    traced = make_fx(lambda x: run_checkpoint(lambda y: (y.sin(),), (x,)))(torch.randn(2, requires_grad=True))
    assert [node.target for node in traced.graph.nodes if node.op == "call_function"] == [torch.ops.aten.sin.default]


def test_reentrant_ones_are_found_in_subgraphs():
    def module(target):
        graph = fx.Graph()
        graph.output(graph.call_function(target, (None, (graph.placeholder("x"),))))
        return fx.GraphModule(torch.nn.Module(), graph)

    assert is_reentrant(module(run_reentrant_checkpoint)) and not is_reentrant(module(run_checkpoint))
    outer = module(run_checkpoint)
    outer.add_submodule("inner", module(run_reentrant_checkpoint))
    assert is_reentrant(outer)
