"""Tests of minidynamo/autograd/graph/node_graph.py: questions about the recorded autograd graph."""

from __future__ import annotations

from minidynamo.autograd.graph.node_graph import NO_GRAPH, Edge, Node, NodeGraph


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
