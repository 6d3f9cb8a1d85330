"""Tests of minidynamo/tracer/graph/subgraphs.py: the tensors that a subgraph takes from the surrounding graph."""

import torch
from torch import fx

from minidynamo.compat import memory_of
from minidynamo.tracer.graph.subgraphs import Subgraph
from minidynamo.variables.numbers import NumberVariable
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
