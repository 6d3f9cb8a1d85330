"""A transform is one node over a subgraph; what a subgraph cannot hold ends the graph."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad, vmap

from minidynamo.tracer.traced_frame import Break
from tests.tracer.capture import capture, targets


def test_one_node_with_what_the_function_reads():
    def program(x, w):
        return vmap(lambda row: row * w)(x)

    x, w = torch.randn(3, 2), torch.randn(2)
    traced = capture(program, x, w)
    names = [getattr(target, "__name__", target) for target in targets(traced)]
    assert names == ["vmap", "getitem"]
    given = {"x": x, "w": w}
    arguments = [given[graph_input.source.display()] for graph_input in traced.inputs]
    assert torch.equal(traced.graph(*arguments)[0], x * w)


def test_what_is_read_and_returned_is_repeated():
    def program(x, w):
        return vmap(lambda row: (w, torch.max(row, 0)))(x)

    x, w = torch.randn(3, 2), torch.randn(2)
    traced = capture(program, x, w)
    shapes = [tuple(tensor.fake.shape) for tensor in traced.outputs]
    assert not isinstance(traced.exit, Break) and shapes == [(3, 2), (3,), (3,)]


def test_a_module_has_its_own_parameters_again():
    module = torch.nn.Linear(2, 1)

    def program(x):
        loss = lambda params: functional_call(module, params, (x,)).sum()  # noqa: E731
        return grad(loss)({"weight": torch.zeros(1, 2)})["weight"], module(x)

    traced = capture(program, torch.ones(2))
    assert not isinstance(traced.exit, Break)


def keeps_something(x, seen):
    return vmap(lambda row: seen.setdefault("row", row) * 2)(x)


def writes_to_what_it_reads(x, seen):
    y = torch.zeros(2)
    return vmap(lambda row: row + y.add_(1))(x)


def returns_a_number(x, seen):
    return vmap(lambda row: 1)(x)


def another_number_of_dimensions(x, seen):
    return vmap(torch.mul, in_dims=(0,))(x, x + 1)


def no_such_dimension(x, seen):
    return vmap(torch.sin, in_dims=5)(x)


def not_a_scalar(x, seen):
    return grad(torch.sin)(x)


@pytest.mark.parametrize(
    "program",
    [
        keeps_something,
        writes_to_what_it_reads,
        returns_a_number,
        another_number_of_dimensions,
        no_such_dimension,
        not_a_scalar,
    ],
)
def test_what_ends_the_graph(program):
    traced = capture(program, torch.randn(3, 2), {})
    assert isinstance(traced.exit, Break) and traced.exit.diagnostic.code == "MD207"
