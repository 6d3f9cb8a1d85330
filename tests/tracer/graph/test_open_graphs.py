"""Tests of minidynamo/tracer/graph/open_graphs.py: the graph that an operation is added to while subgraphs are open."""

import pytest
import torch

from minidynamo.tracer.graph.open_graphs import OpenGraphs
from minidynamo.variables.tensors import TensorVariable


def tensor(graph, name):
    return TensorVariable(graph.placeholder(name), torch.ones(2))


def test_operations_go_into_the_innermost_graph_until_it_is_left():
    graphs = OpenGraphs()
    assert graphs.graph is graphs.root and graphs.subgraph is None
    with graphs.open(()) as outer:
        with pytest.raises(ZeroDivisionError), graphs.open(()) as inner:
            assert graphs.graph is inner.graph and graphs.subgraph is inner
            raise ZeroDivisionError
        assert graphs.graph is outer.graph
    assert graphs.graph is graphs.root


def test_numbers_are_taken_where_every_open_graph_takes_them():
    graphs = OpenGraphs()
    assert graphs.takes_numbers
    with graphs.open((), takes_numbers=True):
        assert graphs.takes_numbers
        with graphs.open(()):
            assert not graphs.takes_numbers
            with graphs.open((), takes_numbers=True):
                assert not graphs.takes_numbers


def test_what_a_closed_graph_has_computed_is_out_of_reach():
    graphs = OpenGraphs()
    x = tensor(graphs.root, "x")
    with graphs.open(()) as subgraph:
        inside = tensor(subgraph.graph, "inside")
        assert graphs.holds(inside.node) and graphs.holds(x.node)
        assert graphs.node_of(x) is subgraph.inputs[x] and graphs.node_of(inside) is inside.node
    assert not graphs.holds(inside.node) and graphs.node_of(x) is x.node


def test_closed_graphs_are_modules_with_names_of_their_own():
    graphs = OpenGraphs()
    x = tensor(graphs.root, "x")
    nodes = []
    for _ in range(2):
        with graphs.open([x]) as subgraph:
            unused = subgraph.graph.call_function(torch.sin, (subgraph.inputs[x],))
            result = TensorVariable(subgraph.graph.call_function(torch.cos, (subgraph.inputs[x],)), torch.ones(2))
        nodes.append(graphs.close(subgraph, [result], "body"))
        assert unused not in subgraph.graph.nodes
    assert [node.target for node in nodes] == ["body_0", "body_1"]
    assert torch.equal(graphs.module(nodes[1])(torch.ones(2))[0], torch.ones(2).cos())
    graphs.root.output(())
    assert torch.equal(graphs.root_module().body_1(torch.ones(2))[0], torch.ones(2).cos())
