"""Tests of minidynamo/autograd/reinplace/alias_sets.py: which values share memory, and who reads it."""

from __future__ import annotations

import torch

from minidynamo.autograd.reinplace.alias_sets import Memories, is_plain
from tests.autograd.programs import graphs, inputs


def program(x, w):
    made = x.sin()
    parts = made.split(2)
    values, places = (x @ w).sort(1)
    return parts[0] * 2, values + places, made.t() + w


def test_views_lie_in_what_they_are_views_of_and_results_apart():
    graph = graphs(program, inputs((4, 4), (4, 4))()[0]).forward.graph
    memories = Memories(graph)
    named = {node.name: node for node in graph.nodes}
    made = named["sin"]
    lying = {node.name for node in memories.members[made]}
    assert {"sin", "split", "t"} <= lying and "mul" not in lying
    results = list(named["sort"].users)
    assert [memories.place_of(node) for node in results] == results
    assert [node.name for node in memories.readers(made, memories.position[made])][:1] == ["split"]
    assert memories.is_whole(made) and not memories.is_whole(named["x"] if "x" in named else next(iter(graph.nodes)))


def test_what_overlaps_itself_is_not_plain():
    x = torch.zeros(3)
    assert is_plain(x) and not is_plain(x.expand(2, 3)) and not is_plain(torch.conj(x.to(torch.complex64)))
