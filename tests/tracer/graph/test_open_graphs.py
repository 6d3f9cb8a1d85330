"""Tests of minidynamo/tracer/graph/open_graphs.py: tensors that a subgraph takes from the surrounding graph, and the
graph that records an operation."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from minidynamo.compat import memory_of
from minidynamo.tracer.graph.open_graphs import OpenGraphs, Subgraph
from minidynamo.variables.base import NumberVariable
from minidynamo.variables.tensors import TensorVariable


def variable(graph, name, tensor):
    return TensorVariable(graph.placeholder(name), tensor)


def test_tensors_from_outside_become_inputs_once_and_in_order():
    outer, subgraph = fx.Graph(), Subgraph()
    a, b = variable(outer, "a", torch.ones(2)), variable(outer, "b", torch.ones(2))
    assert subgraph.node_of(b) is subgraph.node_of(b)
    subgraph.graph.call_function(torch.sin, (subgraph.node_of(b),))
    subgraph.take([a, b])
    assert list(subgraph.inputs) == [b, a]
    assert [node.name for node in subgraph.graph.nodes] == ["b", "a", "sin"]


def test_tensors_from_inside_stand_for_themselves():
    subgraph = Subgraph()
    inside = TensorVariable(subgraph.graph.call_function(torch.ones, (2,)), torch.ones(2))
    assert subgraph.node_of(inside) is inside.node and not subgraph.inputs


def test_writes_to_inputs_are_noted_also_through_views():
    outer, subgraph = fx.Graph(), Subgraph()
    a = variable(outer, "a", torch.ones(2))
    subgraph.take([a])
    subgraph.record_write(torch.ones(2))
    assert subgraph.take_written() is None
    subgraph.record_write(a.fake.data[:1])
    assert subgraph.take_written() is a and subgraph.take_written() is None
    assert subgraph.input_in_memory_of(a.fake.view(1, 2)) is a
    assert memory_of(a.fake) == memory_of(a.fake.t())


def test_inputs_of_another_form_are_found():
    outer, subgraph = fx.Graph(), Subgraph()
    a = variable(outer, "a", torch.ones(2, 3))
    subgraph.take([a])
    assert subgraph.changed_facts() is None
    a.fake.t_()
    assert subgraph.changed_facts() is a


def test_numbers_from_outside_become_inputs_beside_tensors():
    outer, subgraph = fx.Graph(), Subgraph(takes_numbers=True)
    a = variable(outer, "a", torch.ones(2))
    node = outer.placeholder("n")
    node.meta["example_value"] = 3
    n = NumberVariable(3, int, lambda: 3, node)
    subgraph.take([a, n])
    assert subgraph.node_of(n).meta["example_value"] == 3
    assert list(subgraph.inputs) == [a, n] and subgraph.tensors == [a]
    assert subgraph.changed_facts() is None and subgraph.input_in_memory_of(a.fake) is a


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
