"""A checkpoint is one node that names its subgraph."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from minidynamo.graph.higher_order import run_checkpoint
from minidynamo.tracer.records.traced_frame import Break
from tests.tracer.capturing import capture, placeholders, targets


def test_one_node_with_everything_that_the_function_reads():
    def program(x, y):
        return checkpoint(lambda t: t.sin() * y, x, use_reentrant=False)

    x, y = torch.randn(2, requires_grad=True), torch.randn(2)
    traced = capture(program, x, y)
    assert targets(traced)[0] is run_checkpoint
    given = {"x": x, "y": y}
    (result,) = traced.graph(*[given[name] for name in placeholders(traced)])
    assert torch.equal(result, x.sin() * y)


@pytest.mark.parametrize("options", [{}, {"use_reentrant": True}, {"use_reentrant": False, "debug": True}])
def test_options_that_the_node_does_not_stand_for(options):
    def program(x):
        return checkpoint(torch.sin, x, **options)

    assert isinstance(capture(program, torch.randn(2)).exit, Break)
