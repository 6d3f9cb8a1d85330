"""Tests of minidynamo/graph/marks.py: backends that read the tracer's mark, and backends that set their own."""

from __future__ import annotations

import pytest
import torch

from minidynamo.backends.registry import aot_eager, boxed_nop, eager
from minidynamo.compat import FakeTensorMode
from minidynamo.graph.marks import COMPUTES_FIRST, RECORDS_WRITES


def captured() -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.sin, (x,)),))
    return torch.fx.GraphModule({}, graph)


@pytest.mark.parametrize("records_writes", [False, True])
def test_a_graph_whose_writes_autograd_records_computes_first_where_it_can(records_writes: bool) -> None:
    marked = {}
    for backend in (eager, boxed_nop, aot_eager):
        gm = captured()
        if records_writes:
            gm.meta[RECORDS_WRITES] = True
        x = torch.ones(2)
        with FakeTensorMode() as mode:
            run = backend(gm, [mode.from_tensor(x)])
        assert torch.equal(run([x])[0], x.sin())
        marked[backend] = COMPUTES_FIRST in gm.meta
    assert marked == {eager: records_writes, boxed_nop: False, aot_eager: True}
