"""Tests of minidynamo/autograd/graph/provenance.py: the user's lines on forward and backward nodes."""

import torch
from torch import fx

from minidynamo.autograd.aot import aot_graphs
from minidynamo.compat import FakeTensorMode
from minidynamo.errors import UserLocation
from tests.autograd.programs import fake


def test_forward_and_backward_nodes_carry_the_line_that_caused_them():
    def program(x, w):
        y = x @ w
        z = y.sin()
        z.mul_(2)
        return (z.sum(),)

    gm = fx.symbolic_trace(program)
    line = 0
    for node in gm.graph.nodes:
        if node.op.startswith("call"):
            line += 1
            node.meta["user_location"] = UserLocation("train.py", line, node.name)
    mode = FakeTensorMode()
    args = [fake(mode, torch.randn(3, 3, requires_grad=True)) for _ in range(2)]
    graphs = aot_graphs(gm, args)

    def lines(module):
        calls = [node for node in module.graph.nodes if node.op == "call_function"]
        return {node.name: getattr(node.meta.get("user_location"), "lineno", None) for node in calls}

    assert lines(graphs.forward) == {"mm": 1, "sin": 2, "mul": 3, "sum_1": 4}
    backward = lines(graphs.backward)
    assert [backward[name] for name in ("expand", "mul_1", "cos", "mul_2")] == [4, 3, 2, 2]
    assert {backward[name] for name in backward if name.startswith(("mm", "t"))} == {1}
    assert [value.user_location.lineno for value in graphs.signature.saved if value.op != "input"] == [1]
    assert "train.py:1 in matmul" in str(graphs.signature.saved[-1])


def test_without_locations_nothing_is_marked():
    gm = fx.symbolic_trace(lambda x: (x.sin(),))
    graphs = aot_graphs(gm, [fake(FakeTensorMode(), torch.randn(3, requires_grad=True))])
    assert not any("user_location" in node.meta for node in graphs.forward.graph.nodes)
