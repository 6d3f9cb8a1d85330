"""Tests of minidynamo/autograd/functional/functional_graph.py: reads and writes of values without a traced graph."""

import pytest
import torch

from minidynamo.autograd.functional.functional_graph import Base, FunctionalGraph, Value
from minidynamo.autograd.graph.graph_builder import GraphBuilder
from minidynamo.autograd.graph.signature import ViewStep
from minidynamo.compat import FakeTensorMode
from minidynamo.errors import GraphRefused

aten = torch.ops.aten


@pytest.fixture
def graph():
    return FunctionalGraph(GraphBuilder(FakeTensorMode()))


def placeholder(graph, name, *shape):
    with graph.emitter.mode:
        return graph.emitter.placeholder(name, torch.empty(*shape))


def view(graph, value, op, *args):
    return Value(value.base, graph.emitter.emit(op, value.node, *args), value.version, value, ViewStep(op, args))


def whole(node):
    return Value(Base(node), node, 0)


def test_a_write_through_a_view_is_read_through_its_base_and_its_other_views(graph):
    value = whole(placeholder(graph, "x", 4, 3))
    old = value.node
    row, turned = view(graph, value, aten.select.int, 0, 1), view(graph, value, aten.t.default)
    new = placeholder(graph, "new", 3)
    graph.write(row, new)
    assert graph.read(row) is new and [step.op for step in row.steps()] == [aten.select.int]
    assert graph.read(value) is not old and graph.read(value).target is aten.select_scatter.default
    assert graph.read(turned).args[0] is graph.read(value) and value.base.version == 1


def test_writes_that_no_value_stands_for_are_refused(graph):
    value = whole(placeholder(graph, "x", 3))
    unknown = view(graph, value, aten.alias_copy.default)
    with pytest.raises(GraphRefused, match="a view whose inverse is not known"):
        graph.write(unknown, value.node)
    widened = whole(graph.emitter.emit(aten.expand.default, value.node, [2, 3]))
    with pytest.raises(GraphRefused, match="whose elements share memory"):
        graph.write(widened, widened.node)
