import pytest
import torch

import minidynamo
from minidynamo.tracer.records.registry import cannot_trace


def test_it_breaks_the_graph_where_a_twin_is_traced():
    def joined(x):
        return x + 1, sum([[1]], [len(x)])

    compiled = minidynamo.compile(joined, backend="eager")
    assert compiled(torch.ones(2))[1] == [2, 1]

    def text(x):
        try:
            sum([], "")
        except TypeError:
            return x + 1

    compiled = minidynamo.compile(text, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [2, 2]
    assert "sum refuses it" in compiled.breaks()


def test_it_never_runs():
    with pytest.raises(NotImplementedError, match="this: that"):
        cannot_trace("this", "that")
