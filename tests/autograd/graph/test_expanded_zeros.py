"""Zeros that only concatenations read take no memory."""

import torch

import minidynamo
from benchmarks.memory import peak_bytes
from minidynamo.autograd.graph.expanded_zeros import expand_zeros
from tests.codegen.graphs import trace

SIZE = 4 * 1024


def test_the_gradient_of_one_part_of_four():
    def program(x):
        return x.split(1024)[1].sin()

    x = torch.randn(4096, requires_grad=True)
    program(x).sum().backward()
    expected, x.grad = x.grad, None
    call = minidynamo.compile(program, backend="aot_eager")

    def step():
        call(x).sum().backward()

    step()
    assert torch.equal(x.grad, expected)
    x.grad = None
    # The gradient, the part of it, and the numbers of one element.
    assert peak_bytes(step) < 6 * SIZE


def test_other_readers_get_zeros_in_memory():
    def program(x):
        zeros = torch.zeros(4)
        return torch.cat([zeros, x]), zeros.add(x), torch.cat([torch.zeros(2, 4), x[None]])

    x = torch.randn(4)
    graph = trace(program, x)
    expand_zeros(graph.graph)
    graph.recompile()
    shapes = [
        node.meta["val"].shape
        for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.zeros.default)
    ]
    assert shapes == [(4,), ()]
    for actual, expected in zip(graph(x), program(x)):
        assert torch.equal(actual, expected)
