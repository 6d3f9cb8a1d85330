"""Tests of minidynamo/tracer/graph/positions.py: the positions that operations look up."""

import operator

import pytest
import torch
import torch.nn.functional as F

from minidynamo.tracer.graph.written_places import positions_of

F32, I64 = torch.empty(4, 3), torch.empty(2, dtype=torch.long)


def node_of(target, *args):
    """Returns a call of a node for each tensor among the arguments, and for each in a tuple."""
    graph = torch.fx.Graph()

    def placed(value):
        if isinstance(value, tuple):
            return tuple(map(placed, value))
        if not isinstance(value, torch.Tensor):
            return value
        node = graph.placeholder("value")
        node.meta["example_value"] = value
        return node

    create = graph.call_method if isinstance(target, str) else graph.call_function
    return create(target, placed(args))


@pytest.mark.parametrize(
    ("target", "args", "expected"),
    [
        (torch.index_select, (F32, 1, I64), [(0, 3)]),
        ("index_add_", (F32, 0, I64, F32), [(0, 4)]),
        ("scatter_", (F32, -1, I64, 1.0), [(0, 3)]),
        (operator.getitem, (F32, I64), [(-4, 4)]),
        (operator.setitem, (F32, (slice(None), I64), 0.0), [(-3, 3)]),
        (operator.getitem, (F32, (I64, I64)), [(-4, 4), (-3, 3)]),
        ("index_put_", (F32, (I64,), F32), [(-4, 4)]),
        (F.embedding, (I64, F32), [(0, 4)]),
        (F.cross_entropy, (F32, I64), [(0, 3)]),
        (F.nll_loss, (torch.empty(5), I64), [(0, 5)]),
        (operator.getitem, (F32, (None, I64, None, I64)), [(-4, 4), (-3, 3)]),
        (operator.floordiv, (I64, 2), []),
        (torch.repeat_interleave, (F32, 2), []),
    ],
)
def test_positions_and_their_ranges(target, args, expected):
    assert [tuple(found[1:]) for found in positions_of(node_of(target, *args))] == expected


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (torch.linalg.cholesky, (F32,)),
        (operator.floordiv, (I64, I64)),
        (operator.floordiv, (I64, 0)),
        (operator.setitem, (F32, F32 > 0, F32)),
        (operator.getitem, (F32, (..., I64))),
        (torch.repeat_interleave, (F32, I64)),
        (F.cross_entropy, (F32, F32)),
    ],
)
def test_what_hangs_on_more_is_not_known(target, args):
    assert positions_of(node_of(target, *args)) is None
