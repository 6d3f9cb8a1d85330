"""Tests of minidynamo/autograd/graph/signature.py."""

from __future__ import annotations

import torch

from minidynamo.autograd.graph.signature import NO_GRAPH, Edge, GraphSignature, Node, NodeGraph, ViewStep
from minidynamo.errors import UserLocation
from minidynamo.memory.plan import SavedValue
from tests.autograd.programs import graphs, inputs


def test_targets_come_before_views() -> None:
    nodes = (Node(0, frees=(0,)), Node(2, inputs=(0,), frees=(1,)), Node(output=3))
    graph = NodeGraph(nodes, (Edge(5, True, (0,), (), (0, 1)),))
    assert graph.targets == nodes[:2] and graph.positions == (0, 2) and graph.inputs == (5,)
    assert graph.gradients == {} and graph.frees_in_parts


def test_all_nodes_that_a_node_is_computed_from() -> None:
    graph = NodeGraph((Node(0), Node(1, inputs=(0,)), Node(2, gradient=7), Node(3, inputs=(1, 2))))
    assert [graph.all_inputs(number) for number in range(4)] == [set(), {0}, set(), {0, 1, 2}]
    assert graph.gradients == {2: 7}


def test_one_target_frees_everything() -> None:
    assert not NodeGraph((Node(0),)).frees_in_parts and not NO_GRAPH.frees_in_parts


def test_a_view_step_is_replayed():
    x = torch.arange(6.0).view(2, 3)
    assert torch.equal(ViewStep(torch.ops.aten.select.int, (1, 2)).apply(x), x[:, 2])


def test_saved_values_tell_their_story():
    where = UserLocation("net.py", 3, "forward")
    value = SavedValue("mm", (2, 3), torch.float32, 24, "aten.mm.default", where, "too expensive")
    assert str(value) == "mm: torch.float32[2, 3], 24 bytes, aten.mm.default: too expensive  net.py:3 in forward"
    assert GraphSignature((), (), saved=(value, value)).saved_bytes == 48


def test_a_signature_tells_what_a_graph_does():
    def program(x, y):
        y.add_(1)
        return x * y, x[0], y

    make = inputs((2, 3), (2, 3), grad=False)
    signature = graphs(program, make()[0]).signature
    assert [(m.index, m.result) for m in signature.mutations] == [(1, None)]
    assert [(p.origin, p.index, len(p.steps)) for p in signature.outputs] == [
        ("graph", 0, 0),
        ("input", 0, 1),
        ("input", 1, 0),
    ]
    assert signature.inputs == ("arg0", "arg1") and signature.saved == ()
