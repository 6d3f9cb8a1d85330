"""Owns the knowledge which values of a graph may lie in the same memory, and who reads it behind a position.

Memory is named by the node that makes it, or by the input that is it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.functional.joint_graph import maker_of
from minidynamo.autograd.functional.shape_only_reads import ASKED_FOR_LAYOUT
from minidynamo.autograd.functional.written_inputs import lies_in_arguments, memory_of
from minidynamo.autograd.graph.mutation import is_view, named_arguments
from minidynamo.autograd.graph.numbers import is_symbolic, key, keys
from minidynamo.autograd.graph.overlaps import overlaps_itself
from minidynamo.compat import OpOverload
from minidynamo.graph.pytree import nodes_in, tensors_in
from minidynamo.memory.graph_plan import may_share

aten = torch.ops.aten

READING_LAYOUT = frozenset(
    {aten.sym_size.int, aten.sym_stride.int, aten.sym_numel.default, aten.sym_storage_offset.default}
)


class Memories:
    """`places` has the memories that a node may lie in, `members` what may lie in each, `position` the order in which
    the graph runs."""

    def __init__(self, graph: fx.Graph) -> None:
        self.position = {node: k for k, node in enumerate(graph.nodes)}
        self.places: dict[fx.Node, frozenset[fx.Node]] = {}
        self.members: dict[fx.Node, list[fx.Node]] = {}
        for node in graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self.add(node, frozenset((node,)))
            elif node.op == "call_function":
                around = frozenset(place for source in _sources(node) for place in self.places[source])
                own: frozenset[fx.Node] = frozenset() if _is_shared(node) else frozenset((node,))
                self.add(node, own if _is_new(node) else own | around)

    def add(self, node: fx.Node, places: frozenset[fx.Node]) -> None:
        """`node` lies in one of `places`."""
        self.places[node] = places
        for place in places:
            self.members.setdefault(place, []).append(node)

    def insert(self, node: fx.Node, like: fx.Node) -> None:
        """A new node that stands in front of `like`, and lies where its first argument does."""
        self.position[node] = self.position[like]
        self.add(node, self.places[node.args[0]])  # type: ignore[index]

    def place_of(self, node: fx.Node) -> fx.Node | None:
        """The one memory that `node` lies in; None if it may be another one."""
        return next(iter(self.places[node])) if len(self.places[node]) == 1 else None

    def merge(self, place: fx.Node, into: fx.Node) -> None:
        """What was a memory of its own lies in another one."""
        for node in self.members.pop(place):
            self.places[node] = self.places[node] - {place} | {into}
            self.members[into].append(node)

    def readers(self, place: fx.Node, behind: int) -> list[fx.Node]:
        """Who reads, behind a position, what was there in a memory by then, in order."""
        there = [node for node in self.members[place] if self.position[node] <= behind]
        found = {user for node in there for user in node.users if self.position[user] > behind and _reads(user, node)}
        return sorted(found, key=self.position.__getitem__)

    def last_read(self, place: fx.Node) -> int:
        """The position of the last node that reads a memory."""
        return max((self.position[user] for node in self.members[place] for user in node.users), default=-1)

    def is_whole(self, node: fx.Node) -> bool:
        """Whether `node` is all of the memory that it lies in, which was made here."""
        place = self.place_of(node)
        if place is None or place.op != "call_function" or memory_of(node) is None or memory_of(place) is None:
            return False
        value, whole = node.meta["val"], place.meta["val"]
        return bool(key(value.numel()) == key(whole.numel()) and value.itemsize == whole.itemsize)


def _sources(node: fx.Node) -> list[fx.Node]:
    """The arguments that the result of `node` may lie in, where it lies in any."""
    if not isinstance(node.target, OpOverload) or not may_share(node):
        return node.all_input_nodes
    schema = compat.schema_of(node.target)
    returned = {mark for result in schema.returns if result.alias_info for mark in result.alias_info.before_set}
    shared = [arg.name for arg in schema.arguments if arg.alias_info and returned & set(arg.alias_info.before_set)]
    named = named_arguments(node.target, node.args, node.kwargs)
    return nodes_in([named[name] for name in shared]) if shared else node.all_input_nodes


def _reads(user: fx.Node, node: fx.Node) -> bool:
    """Whether what `user` gives depends on the data of `node`, not on its layout alone."""
    if user.target in READING_LAYOUT:
        return False
    return user.target not in ASKED_FOR_LAYOUT or user.args[0] is not node or user.all_input_nodes != [node]


def _is_new(node: fx.Node) -> bool:
    """Whether a node makes memory that nothing else lies in."""
    maker = maker_of(node)
    if maker is node:
        return not lies_in_arguments(node)
    memory = memory_of(node)
    return not lies_in_arguments(maker) and memory is not None and _is_apart(node, maker, memory)


def _is_shared(node: fx.Node) -> bool:
    """Whether the results are known to lie in arguments."""
    maker = maker_of(node)
    return isinstance(maker.target, OpOverload) and may_share(maker)


def _is_apart(node: fx.Node, maker: fx.Node, memory: object) -> bool:
    if any(memory_of(source) == memory for source in maker.all_input_nodes):
        return False
    others = [value for value in tensors_in(maker.meta.get("val")) if value is not node.meta["val"]]
    return all(value.layout is torch.strided and compat.memory_of(value) != memory for value in others)


def is_plain(value: Any) -> bool:
    """Whether a fake value is a strided tensor whose elements lie apart, and are what they look like."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    if any(is_symbolic(size) and key(stride) == 0 for size, stride in zip(value.shape, value.stride())):
        return False
    return not (value.is_conj() or value.is_neg() or overlaps_itself(value))


def same_kind(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether each of two tensors can be filled from the other, element by element."""
    return (a.dtype, a.device, keys(a.shape)) == (b.dtype, b.device, keys(b.shape))


def is_window(node: fx.Node, made: fx.Node, there: torch.Tensor, place: torch.Tensor) -> bool:
    """Whether `node`, which is `made` or a view of it, is the same elements as `place` once `made` lies where `there`
    does."""
    value, moved = node.meta["val"], made.meta["val"]
    while node is not made:
        if not isinstance(node.target, OpOverload) or not is_view(node.target):
            return False
        node = node.args[0]  # type: ignore[assignment]
        if not is_plain(node.meta["val"]) or node.meta["val"].dtype != value.dtype:
            return False
    if not is_plain(value) or not same_kind(value, place) or keys(value.stride()) != keys(place.stride()):
        return False
    offset = value.storage_offset() - moved.storage_offset() + there.storage_offset()
    return bool(key(offset) == key(place.storage_offset()))
