"""Tests of minidynamo/graph/pytree.py."""

from __future__ import annotations

import operator
import types

import pytest
import torch
from torch import fx

from minidynamo.graph.boxed import make_boxed
from minidynamo.graph.pytree import Structure, compile_flat, leaves, nodes_in, rebuild, structure_of, tensors_in

NESTED = [1, (2, {"k": [3, 4], "z": 5}), [], "text"]


def test_leaves_and_structure_make_the_value_again():
    structure = structure_of(NESTED)
    assert leaves(NESTED) == [1, 2, 3, 4, 5, "text"]
    assert rebuild(structure, leaves(NESTED)) == NESTED
    assert str(structure) == "[*, (*, {'k': [*, *], 'z': *}), [], *]"
    assert structure.leaves == 6


def test_what_torch_returns_with_names():
    pair = torch.return_types.max([1, 2])
    structure = structure_of([pair])
    assert leaves([pair]) == [1, 2] and type(rebuild(structure, [3, 4])[0]) is type(pair)


def test_what_is_nested():
    assert not structure_of(1).is_nested and not structure_of([1, 2]).is_nested
    assert structure_of((1,)).is_nested and structure_of([[1]]).is_nested and structure_of({}).is_nested
    assert structure_of([1]) != structure_of((1,)) and structure_of({"a": 1}) != structure_of({"b": 1})
    assert structure_of(torch.ones(2)) == Structure()


def sums():
    graph = fx.Graph()
    pair, named = graph.placeholder("pair"), graph.placeholder("named")

    def getitem(of, key):
        return graph.call_function(operator.getitem, (of, key))

    total = graph.call_function(torch.add, (getitem(pair, 0), getitem(pair, 1)))
    stacked = graph.call_function(torch.stack, (pair,))
    graph.output((total, getitem(named, "k"), stacked))
    return fx.GraphModule(torch.nn.Module(), graph)


def ones():
    return torch.ones(2)


def test_a_graph_with_nested_inputs_runs_on_their_leaves():
    seen = []

    def compiler(gm, examples):
        seen.append([node.name for node in gm.graph.nodes if node.op == "placeholder"])
        return make_boxed(gm)

    gm = sums()
    next(iter(gm.graph.nodes)).meta["steal_arg"] = True
    call = compile_flat(gm, [[ones(), ones()], {"k": ones()}], compiler)
    pair, named = [ones(), ones()], {"k": ones() * 3}
    args = [pair, named]
    total, third, stacked = call(args)
    assert args == pair == [] and len(named) == 1
    assert total.tolist() == [2, 2] and third is named["k"] and stacked.shape == (2, 2)
    assert seen == [["pair_0", "pair_1", "named_0"]]


@pytest.mark.parametrize("args", [[[1], {"k": 2, "z": 3}], [1, 2, 3], [[1, 2], {"z": 3}], [(1, 2), {"k": 3}]])
def test_another_structure_is_refused(args):
    call = compile_flat(sums(), [[ones(), ones()], {"k": ones()}], lambda gm, examples: make_boxed(gm))
    with pytest.raises(TypeError, match="structure mismatch"):
        call(args)
    with pytest.raises(TypeError, match="one list"):
        call(tuple(args))


def test_flat_inputs_are_left_alone():
    gm = sums()
    assert compile_flat(gm, [ones(), [ones()]], lambda graph, examples: graph) is gm


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
