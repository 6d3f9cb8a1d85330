"""Tests of minidynamo/tracer/graph/arguments.py: the stand-ins for trackers in nodes and in calls on fake tensors."""

import collections
import types

import numpy as np
import pytest
import torch

from minidynamo.guards.profile import FrameProfile
from minidynamo.guards.source import Local
from minidynamo.tracer.graph.arguments import Arguments, NotInGraph
from minidynamo.tracer.graph.output_graph import OutputGraph
from minidynamo.tracer.records.constants import key_of
from minidynamo.variables.base import ConstantVariable
from minidynamo.variables.containers import DictVariable, ListVariable, SliceVariable, TupleVariable
from minidynamo.variables.objects import ObjectVariable, OpaqueVariable

C = ConstantVariable


@pytest.fixture
def made():
    """Returns a graph that takes numbers, the stand-in for arguments of its calls, and a tensor."""
    graph = OutputGraph(lambda: None, profile=FrameProfile(dynamic=True))
    return graph, Arguments(graph._open, graph.inputs), graph.inputs.tensor(torch.ones(2, 3), Local("x"))


def test_containers_are_taken_apart(made):
    _, arguments, x = made
    given = TupleVariable([x, ListVariable([C(1), x]), DictVariable({key_of(C("k")): x}), SliceVariable(C(0), x, C(1))])
    for source_key, like in zip(arguments.convert(given), (x.node, x.fake)):
        assert source_key == (like, [1, like], {"k": like}, slice(0, like, 1))


def test_a_container_with_a_class_of_its_own_stands_for_what_it_holds(made):
    _, arguments, x = made
    subclass = type("Tensors", (list,), {})
    given = ObjectVariable(None, subclass, ListVariable([x]))
    assert arguments.convert(given) == ([x.node], [x.fake])


@pytest.mark.parametrize(
    "given",
    [
        lambda x: OpaqueVariable(types.SimpleNamespace()),
        lambda x: C(np.float32(1)),
        lambda x: ListVariable([x], collections.deque),
        lambda x: DictVariable({key_of(x): x}),
        lambda x: DictVariable({key_of(C("k")): x}, collections.OrderedDict),
    ],
    ids=["object", "numpy scalar", "deque", "tensor as key", "another dict"],
)
def test_what_no_node_can_hold(made, given):
    _, arguments, x = made
    with pytest.raises(NotInGraph):
        arguments.convert(given(x))


def test_numbers_are_inputs_made_once_and_constants_where_none_are_taken(made):
    graph, arguments, _ = made
    number = graph.integer(5, Local("n"))
    node, value = arguments.convert(number)
    assert node.op == "placeholder" and value == 5 and arguments.convert(number)[0] is node
    with graph.open_subgraph(()):
        assert arguments.convert(number) == (5, 5)


def test_what_a_closed_subgraph_has_computed_cannot_be_used(made):
    graph, arguments, x = made
    with graph.open_subgraph(()):
        inside = graph.emit(torch.sin, [x], {})
    with pytest.raises(NotInGraph, match="branch"):
        arguments.convert(inside)
