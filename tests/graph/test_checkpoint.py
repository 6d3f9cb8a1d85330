"""A checkpoint in a graph keeps its inputs, and gives backward the same numbers."""

from __future__ import annotations

import torch
from torch import fx

from minidynamo.graph.checkpoint import is_reentrant, run_checkpoint, run_reentrant_checkpoint


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
