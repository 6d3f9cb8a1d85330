"""Owns an estimate of the memory that a program takes in eager, read off its joint graph as it was traced.

It costs next to nothing, and is nearly always right. Where a compiled graph would need more, `rehearsal.py` tells what
eager does need.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import fx

from minidynamo.autograd.eager_peak.rehearsal import EagerMemory
from minidynamo.autograd.functional.shape_only_reads import read_inputs
from minidynamo.autograd.graph.numbers import is_number
from minidynamo.autograd.trace.joint import Trace
from minidynamo.graph.decomposed import PART_OF, is_inside
from minidynamo.memory.graph_plan import workspace_of_node
from minidynamo.memory.storages import storages_in


@dataclass(frozen=True)
class TracedMemory:
    """What `EagerMemory` has; and the most at one time if the results are held in backward."""

    eager: EagerMemory
    held: int


def traced_memory(trace: Trace) -> TracedMemory:
    """What lives if operations run one by one in the order of the program and of autograd, and each value dies behind
    its last use: no more than in eager, where a gradient function holds what it is given until it is done. When
    backward begins, a gradient of each result arrives."""
    *nodes, output = trace.graph.nodes
    tangents = set(trace.tangents)
    begins = next((place for place, node in enumerate(nodes) if node in tangents), len(nodes))
    inputs = {key for node in (*trace.primals.values(), *trace.input_copies) for key, _ in _storages(node)}
    born: dict[object, int] = {}
    dies: dict[object, int] = {}
    size: dict[object, int] = {}
    arrived = {key for node in tangents for key, _ in _storages(node)}
    for place, node in enumerate(nodes):
        for key, nbytes in _storages(node):
            born.setdefault(key, place)
            size.setdefault(key, 0 if key in inputs or node.op == "get_attr" or is_inside(node) else nbytes)
            dies[key] = place
        asked = read_inputs(node) if is_number(node) else node.all_input_nodes  # a size is known without the tensor
        for source in asked:
            dies.update((key, place) for key, _ in _storages(source))
    for place, node in enumerate(nodes[begins:], begins):
        if node.target is torch.ops.aten.add.Tensor:  # torch writes a sum of gradients over the first of them
            over = [key for key, _ in _storages(node.args[0]) if dies[key] == place and key not in arrived]
            dies.update((key, place - 1) for key in over)
    returned, _, _, gradients, *_ = output.args[0]
    results = {key for node in returned for key, _ in _storages(node)}
    dies.update((key, max(dies[key], begins - 1)) for key in results)
    dies.update((key, len(nodes) - 1) for node in gradients for key, _ in _storages(node))
    changes = [0] * (len(nodes) + 1)
    for key, nbytes in size.items():
        changes[born[key]] += nbytes
        changes[dies[key] + 1] -= nbytes
    for place, node in enumerate(nodes):
        inside = workspace_of_node(node) if node.op == "call_function" and PART_OF not in node.meta else 0
        changes[place] += inside
        changes[place + 1] -= inside
    kept = {key for key, end in dies.items() if end >= begins and born[key] < begins}
    between = sum(size[key] for key in kept | results)
    levels = [*itertools.accumulate(changes)]
    for key in results:  # held to the end
        changes[dies[key] + 1] += size[key]
    held = max(itertools.accumulate(changes))
    return TracedMemory(EagerMemory(max(levels), between, max(levels[:begins], default=0)), held)


def _storages(node: object) -> Iterator[tuple[object, int]]:
    return storages_in(node.meta.get("val") if isinstance(node, fx.Node) else None)
