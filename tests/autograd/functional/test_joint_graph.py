"""Tests of minidynamo/autograd/functional/joint_graph.py."""

import operator

import torch
from torch import fx

from minidynamo.autograd.functional.joint_graph import (
    Forward,
    Joint,
    ancestors,
    marked_ancestors,
    producer_of,
    tangent_dependent,
)


def test_ancestors():
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    z = graph.call_function(torch.add, (x, 1))
    assert ancestors([z]) == {x, z} and y not in ancestors([z])


def test_places_behind_says_of_each_node_which_of_some_it_is_computed_from():
    graph = fx.Graph()
    x, y, z = map(graph.placeholder, "xyz")
    both = graph.call_function(torch.add, (graph.call_function(torch.sin, (y,)), x))
    places = marked_ancestors(graph, [x, y])
    assert (places[x], places[y], places[both]) == (1, 2, 3) and z not in places


def test_the_producer_of_one_of_several_results_is_the_operation():
    graph = fx.Graph()
    both = graph.call_function(torch.ops.aten.aminmax.default, (graph.placeholder("x"),))
    both.meta["val"] = torch.zeros(()), torch.ones(())
    least = graph.call_function(operator.getitem, (both, 0))
    assert producer_of(least) is both and producer_of(both) is both


def test_forward_runs_for_results_and_effects_and_backward_for_what_tangents_go_into():
    graph = fx.Graph()
    x, tangent = graph.placeholder("x"), graph.placeholder("tangent")
    y, drawn = graph.call_function(torch.ops.aten.sin.default, (x,)), graph.call_function(torch.ops.aten.rand.default)
    drawn.meta["val"] = y.meta["val"] = torch.zeros(1)
    gradient = graph.call_function(torch.ops.aten.mul.Tensor, (tangent, y))
    joint = Joint(forward=Forward(graph=graph, inputs=[x], results=[y]), tangents=[tangent], gradients=[gradient, None])
    assert joint.forward.backward_only == tangent_dependent(graph, {x}) == {tangent, gradient}
    assert joint.forward.roots == [y, drawn] and joint.needed == {x, tangent, y, gradient}
