"""Owns the peak that a graph without writes would have if its operations ran one by one, as the program has them.

What fused code needs is compared with it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from minidynamo.graph_memory import FILLING, may_share
from minidynamo.storages import storages_in

WRITTEN = "written"
"""Where a node notes which of its results the program has written to arguments: by their positions those of these."""

OUT = "out"
"""What nodes note whose result the program has written to `out=`."""

DIES = "dies"
"""What an input notes that dies with its last use, as what forward has kept for backward does."""

MAY_DIE = "may die"
"""What an input notes that is an argument with a history: in backward it dies with its last use if the caller has let
go of it."""

aten = torch.ops.aten

_ZEROS = frozenset((aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default))
_PUTTING = frozenset((aten.select_scatter.default, aten.slice_scatter.default, aten.diagonal_scatter.default))
"""What puts something into a part of a tensor: formulas write to a view of zeros."""


def peak_of_operations(gm: fx.GraphModule, taken: bool = False) -> int:
    """The most bytes that the operations hold at one time. Of the inputs those count that note that they die: of others
    it is for their owners to say. Results stay, unless they are `taken` as soon as they are final."""
    nodes = list(gm.graph.nodes)
    ends = nodes[:-1] if taken else nodes
    last = {source: k for k, node in enumerate(ends) for source in node.all_input_nodes}
    memories: dict[fx.Node, list[int]] = {}  # numbers of what a node lies in
    storages: dict[object, int] = {}
    changes = [0] * (len(nodes) + 1)
    size: dict[int, int] = {}
    dies: dict[int, int] = {}
    fresh = itertools.count()
    for k, node in enumerate(nodes):
        memories[node] = []
        for position, storage, nbytes in _results(node):
            written = _written(node, position, memories)
            written = written or _filled(node, k, memories, dies)
            known = written or ([storages[storage]] if may_share(node) and storage in storages else [])
            storages[storage] = memory = known[0] if known else next(fresh)
            memories[node].append(memory)
            if not known and (node.op != "placeholder" or DIES in node.meta):
                changes[k] += nbytes
                size[memory] = nbytes
            dies[memory] = max(dies.get(memory, 0), last.get(node, k))
    for memory, nbytes in size.items():
        changes[dies[memory] + 1 if dies[memory] + 1 < len(nodes) else -1] -= nbytes
    return max(itertools.accumulate(changes[:-1]), default=0)


def _filled(node: fx.Node, place: int, memories: dict[fx.Node, list[int]], dies: dict[int, int]) -> list[int]:
    """The memory of what an operator puts something into, as formulas do with zeros, if nobody else needs that."""
    source = node.args[0] if node.target in FILLING or node.target in _PUTTING else None
    if node.target in _PUTTING and getattr(source, "target", None) not in _ZEROS:  # which a program copies
        source = None
    found = memories.get(source, []) if isinstance(source, fx.Node) and source.op != "placeholder" else []
    return [memory for memory in found if dies[memory] == place]


def _results(node: fx.Node) -> Iterator[tuple[int, object, int]]:
    """Position, storage and bytes of each tensor among the results of a node. Lists of tensors among them are left out:
    they are what a fused optimizer has written to."""
    value = node.meta.get("val")
    for position, result in enumerate(value if isinstance(value, (list, tuple)) else (value,)):
        if not isinstance(result, (list, tuple)):
            yield from ((position, storage, nbytes) for storage, nbytes in storages_in(result))


def _written(node: fx.Node, position: int, memories: dict[fx.Node, list[int]]) -> list[int]:
    """The memory that the program has written a result to: of an argument, or of the tensor of which it becomes a
    part. Nothing if it has not, or made that memory for it."""
    place = node.meta.get(WRITTEN, {}).get(position)
    source: Any = node.args[place] if place is not None and place < len(node.args) else None
    if isinstance(source, (list, tuple)):
        source = source[position]
    if OUT in node.meta and node.users:
        user = next(iter(node.users))
        source = user.args[0] if WRITTEN in user.meta or user.target is torch.ops.aten.copy_.default else None
    found = memories.get(source, []) if isinstance(source, fx.Node) else []
    return found if len(found) == 1 else []
