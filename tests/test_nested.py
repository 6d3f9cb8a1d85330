"""Tests of minidynamo/nested.py."""

import types

import torch
from torch import fx

from minidynamo.nested import nodes_in, tensors_in


def test_tensors_are_found_in_containers_of_every_kind_as_often_as_they_are_there():
    a, b, c = torch.ones(1), torch.zeros(2), torch.ones(3)
    assert list(tensors_in(a)) == [a]
    found = list(tensors_in([b, (c, None), {"k": b}, types.MappingProxyType({"k": c}), slice(a, 3, None), 4]))
    assert list(map(id, found)) == list(map(id, [b, c, b, c, a]))


def test_nodes_are_found_in_the_arguments_of_a_node_as_often_as_they_are_there():
    graph = fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    assert nodes_in(a) == [a] and nodes_in(3) == []
    assert nodes_in(([a, (b, 2)], {"other": a, "step": slice(b, None)})) == [a, b, a, b]
