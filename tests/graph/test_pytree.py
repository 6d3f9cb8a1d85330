"""Tests of minidynamo/graph/pytree.py."""

from __future__ import annotations

import types

import torch
from torch import fx

from minidynamo.graph.pytree import Structure, leaves, nodes_in, rebuild, structure_of, tensors_in

NESTED = [1, (2, {"k": [3, 4], "z": 5}), [], "text"]


def test_leaves_and_structure_make_the_value_again():
    structure = structure_of(NESTED)
    assert leaves(NESTED) == [1, 2, 3, 4, 5, "text"]
    assert rebuild(structure, leaves(NESTED)) == NESTED


def test_what_torch_returns_with_names():
    pair = torch.return_types.max([1, 2])
    structure = structure_of([pair])
    assert leaves([pair]) == [1, 2] and type(rebuild(structure, [3, 4])[0]) is type(pair)


def test_structures_differ_in_classes_and_keys():
    assert structure_of([1]) != structure_of((1,)) and structure_of({"a": 1}) != structure_of({"b": 1})
    assert structure_of(torch.ones(2)) == Structure()


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
