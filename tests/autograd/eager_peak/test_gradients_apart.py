"""Memory of gradients in eager that a compiled backward does not allocate."""

import pytest
import torch

import minidynamo
from minidynamo.autograd.aot import aot_graphs
from minidynamo.autograd.eager_peak.gradients_apart import GradientsApart, gradients_apart, returns_parts
from minidynamo.backends.registry import boxed_nop

MATRIX = 64 * 64 * 4


def apart(program, repeated=False):
    """Returns the memory of the gradients in a program of one argument, and whether any of these gradients are
    computed."""

    def backend(gm, example_inputs):
        graphs = aot_graphs(gm, example_inputs)
        made = graphs.forward.graph.output_node().args[0][: graphs.partition.results]
        wholes = {("input", 0): example_inputs[0]} | {("graph", i): node.meta["val"] for i, node in enumerate(made)}
        given = graphs.signature, wholes, gm.graph.output_node().args[0]
        found.append((gradients_apart(*given, repeated), returns_parts(*given)))
        return boxed_nop(gm, example_inputs)

    found = []
    minidynamo.compile(program, backend=backend, fullgraph=True)(torch.ones(64, 64, requires_grad=True))
    return found[0]


def late(x):
    made = x.exp()
    return made, x[:16]


def early(x):
    view = x[:16]
    return x.exp(), view


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda x: x.exp(), (GradientsApart(), False)),
        (lambda x: (x.exp(), x.t()), (GradientsApart((MATRIX,)), False)),
        (lambda x: (x.exp(), x.detach()[:16]), (GradientsApart(), False)),
        (lambda x: (x.sum(), x.exp()[:16]), (GradientsApart(joined=frozenset((1,))), True)),
        (late, (GradientsApart((MATRIX,)), True)),  # backward begins when it is the gradient of the argument
        (early, (GradientsApart((MATRIX // 4,), MATRIX), True)),  # and here after the start of backward
    ],
)
def test_gradients_of_views_of_arguments_wait(program, expected):
    assert apart(program) == expected


@pytest.mark.parametrize(
    ("program", "expected"), [(late, GradientsApart((MATRIX,))), (early, GradientsApart((), MATRIX))]
)
def test_one_number_takes_nothing_before_it_has_become_another(program, expected):
    assert apart(program, repeated=True)[0] == expected
