"""A transformation calls torch's own transform on a subgraph, with the arguments of the program."""

from __future__ import annotations

import torch

from minidynamo.graph.func_transforms import Argument, PullBack, Transformation, transformed
from minidynamo.graph.pytree import structure_of


def test_arguments_captured_tensors_and_results():
    def subgraph(captured, a, b):
        return (a * b + captured, a)

    made = Transformation(
        torch.func.vmap,
        {"in_dims": ({"a": 0, "n": None}, None), "out_dims": 1},
        ({"a": Argument(0), "n": 3}, [Argument(1)]),
        {},
        structure_of({"sum": 0, "parts": [0]}),
    )
    captured, a, b = torch.ones(2), torch.randn(3, 2), torch.randn(2)
    result = made.call(subgraph, (captured, a, b))
    torch.testing.assert_close(result, {"sum": (a * b + 1).t(), "parts": [a.t()]})
    run = made.node_function("vmap")
    assert run.__name__ == "vmap"
    torch.testing.assert_close(run(subgraph, (captured, a, b)), ((a * b + 1).t(), a.t()))


def test_as_written():
    x = torch.ones(2)
    made = transformed(torch.func.grad, lambda y, k: (y * y).sum() * k, {"argnums": 0}, (x,), {"k": 3})
    assert made.tolist() == [6, 6]


def test_a_gradient_function_is_made_again():
    def vjp(function, has_aux):
        return lambda *primals: torch.func.vjp(function, *primals, has_aux=has_aux)

    made = Transformation(vjp, {"has_aux": False}, (Argument(0),), {}, structure_of(0))
    pull_back = PullBack(made, lambda captured, a: (a * captured,), (torch.full((2,), 3.0), torch.ones(2)))
    assert pull_back(torch.ones(2))[0].tolist() == [3, 3]


def test_arguments_that_the_function_does_not_take():
    def times(function):
        return lambda args, factor: function(*args) * factor

    made = Transformation(times, {}, ((Argument(0),), Argument(1)), {}, structure_of(0), (Argument(0),))
    assert made.call(lambda a: (a + 1,), (torch.ones(2), torch.full((2,), 3.0))).tolist() == [6, 6]
