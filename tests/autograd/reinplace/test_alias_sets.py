"""Tests of minidynamo/autograd/reinplace/alias_sets.py: values that share memory, and the readers of the memory."""

from __future__ import annotations

import torch

from minidynamo.autograd.reinplace.alias_sets import AliasSets, is_simple_tensor
from tests.autograd.programs import graphs, inputs


def program(x, w):
    made = x.sin()
    parts = made.split(2)
    values, owners = (x @ w).sort(1)
    return parts[0] * 2, values + owners, made.t() + w


def test_views_lie_in_what_they_are_views_of_and_results_apart():
    graph = graphs(program, inputs((4, 4), (4, 4))()[0]).forward.graph
    sets = AliasSets(graph)
    named = {node.name: node for node in graph.nodes}
    made = named["sin"]
    results_in_inputs = {node.name for node in sets.members[made]}
    assert {"sin", "split", "t"} <= results_in_inputs and "mul" not in results_in_inputs
    results = list(named["sort"].users)
    assert [sets.owner_of(node) for node in results] == results
    assert [node.name for node in sets.readers(made, sets.position[made])][:1] == ["split"]


def test_what_overlaps_itself_is_not_plain():
    x = torch.zeros(3)
    assert (
        is_simple_tensor(x)
        and not is_simple_tensor(x.expand(2, 3))
        and not is_simple_tensor(torch.conj(x.to(torch.complex64)))
    )
