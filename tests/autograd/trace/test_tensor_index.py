"""Tensors as subscripts during a trace: a node reads the index, once per unchanged tensor."""

from __future__ import annotations

import pytest
import torch

from minidynamo import compile as compile_function
from minidynamo.graph.unbacked_symints import checked_index
from minidynamo.testing import AotEagerAndRecordGraphs


def reads(program, *args) -> int:
    """Returns the number of nodes that read indices in the graph of `program`, after a comparison with eager."""
    backend = AotEagerAndRecordGraphs()
    expected = program(*(arg.clone() for arg in args))
    made = compile_function(program, backend=backend, fullgraph=True)(*(arg.clone() for arg in args))
    torch.testing.assert_close(made, expected)
    (graph,) = backend.fw_graphs
    return len(graph.graph.find_nodes(op="call_function", target=checked_index))


X, LAST = torch.arange(12.0).reshape(3, 4), torch.tensor(-1)


def written_in_place(x, i):
    first, i = x[i] * 1, i + 0
    second = x[i] * 1
    i.fill_(0)
    return first, second, x[i] * 1


def written_through_data(x, i):
    i = i + 0
    first = x[i] * 1
    i.data.fill_(0)
    return first, x[i] * 1


def written_as_a_part(x, i):
    t = torch.stack([i, i])
    first = x[t[0]] * 1
    t.zero_()
    return first, x[t[0]] * 1


@pytest.mark.parametrize(
    ("count", "program"),
    [
        (1, lambda x, i: (x[i] + x[i], x.sin()[i])),
        (2, lambda x, i: (x[i] * 2, x[:, i] * 2)),  # dimensions of two sizes
        (1, lambda x, i: (x[i], x + 1)),  # the view is created after the graph
        (1, lambda x, i: (x[i], x + 1)[1]),  # an error is an error, whoever uses the result
        (1, lambda x, i: x[:1][i + 1] * 2),  # the only valid index
        (3, written_in_place),
        (2, written_through_data),
        (2, written_as_a_part),
    ],
)
def test_a_place_is_read_once_per_value(count, program):
    assert reads(program, X, LAST) == count


def test_what_is_read_and_written_is_the_same_element():
    def program(x, i):
        x = x * 1
        x[i] += 1
        x[:, i] *= 2
        return x

    assert reads(program, torch.ones(4, 4), LAST) == 1
