"""Owns the alias sets of a graph: which values may share memory, and which nodes read a memory after a position.

A memory is named by its *owner*: the allocating node, or an input.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.functional.joint_graph import producer_of
from minidynamo.autograd.functional.shape_only_reads import CREATES_LIKE
from minidynamo.autograd.functional.written_inputs import may_alias_arguments, memory_of
from minidynamo.autograd.graph.mutation import is_view, named_arguments
from minidynamo.autograd.graph.numbers import is_symbolic, key, keys
from minidynamo.autograd.graph.views import overlaps_itself
from minidynamo.compat import OpOverload
from minidynamo.graph.pytree import nodes_in, tensors_in
from minidynamo.memory.graph_plan import may_share

aten = torch.ops.aten

READING_LAYOUT = frozenset(
    {aten.sym_size.int, aten.sym_stride.int, aten.sym_numel.default, aten.sym_storage_offset.default}
)


class AliasSets:
    """The alias sets of a graph, kept up to date while the graph is rewritten."""

    def __init__(self, graph: fx.Graph) -> None:
        #: Position in the graph, by node.
        self.position = {node: k for k, node in enumerate(graph.nodes)}
        #: Possible owners of the memory, by node.
        self.owners: dict[fx.Node, frozenset[fx.Node]] = {}
        #: Nodes possibly in the memory, by owner.
        self.members: dict[fx.Node, list[fx.Node]] = {}
        for node in graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self.add(node, frozenset((node,)))
            elif node.op == "call_function":
                sources = frozenset(owner for source in _sources(node) for owner in self.owners[source])
                own: frozenset[fx.Node] = frozenset() if _is_shared(node) else frozenset((node,))
                self.add(node, own if _is_new(node) else own | sources)

    def add(self, node: fx.Node, owners: frozenset[fx.Node]) -> None:
        """Adds `node`, with memory of one of `owners`."""
        self.owners[node] = owners
        for owner in owners:
            self.members.setdefault(owner, []).append(node)

    def insert(self, node: fx.Node, like: fx.Node) -> None:
        """Adds a new node before `like`, in the memory of the first argument."""
        self.position[node] = self.position[like]
        self.add(node, self.owners[node.args[0]])  # type: ignore[index]

    def owner_of(self, node: fx.Node) -> fx.Node | None:
        """Returns the owner of the memory of `node`; None if several owners are possible."""
        return next(iter(self.owners[node])) if len(self.owners[node]) == 1 else None

    def merge(self, owner: fx.Node, into: fx.Node) -> None:
        """Moves the values in the memory of `owner` to the memory of `into`."""
        for node in self.members.pop(owner):
            self.owners[node] = self.owners[node] - {owner} | {into}
            self.members[into].append(node)

    def readers(self, owner: fx.Node, after: int) -> list[fx.Node]:
        """Returns, in graph order, the nodes that read the present data of a memory after a position."""
        values = [node for node in self.members[owner] if self.position[node] <= after]
        readers = {user for node in values for user in node.users if self.position[user] > after and _reads(user, node)}
        return sorted(readers, key=self.position.__getitem__)

    def last_read(self, owner: fx.Node) -> int:
        """Returns the position of the last node that reads a memory."""
        return max((self.position[user] for node in self.members[owner] for user in node.users), default=-1)


def _sources(node: fx.Node) -> list[fx.Node]:
    """Returns the arguments whose memory the result of `node` may share."""
    if not isinstance(node.target, OpOverload) or not may_share(node):
        return node.all_input_nodes
    schema = compat.schema_of(node.target)
    returned = {mark for result in schema.returns if result.alias_info for mark in result.alias_info.before_set}
    shared = [arg.name for arg in schema.arguments if arg.alias_info and returned & set(arg.alias_info.before_set)]
    named = named_arguments(node.target, node.args, node.kwargs)
    return nodes_in([named[name] for name in shared]) if shared else node.all_input_nodes


def _reads(user: fx.Node, node: fx.Node) -> bool:
    """Returns whether the value of `user` depends on the data of `node`, not on its layout alone."""
    if user.target in READING_LAYOUT:
        return False
    return user.target not in CREATES_LIKE or user.args[0] is not node or user.all_input_nodes != [node]


def _is_new(node: fx.Node) -> bool:
    """Returns whether a node allocates memory that no argument and no other result shares."""
    producer = producer_of(node)
    if producer is node:
        return not may_alias_arguments(node)
    memory = memory_of(node)
    return not may_alias_arguments(producer) and memory is not None and _is_alone(node, producer, memory)


def _is_shared(node: fx.Node) -> bool:
    """Returns whether the results are known to share memory with arguments."""
    producer = producer_of(node)
    return isinstance(producer.target, OpOverload) and may_share(producer)


def _is_alone(node: fx.Node, producer: fx.Node, memory: object) -> bool:
    if any(memory_of(source) == memory for source in producer.all_input_nodes):
        return False
    others = [value for value in tensors_in(producer.meta.get("val")) if value is not node.meta["val"]]
    return all(value.layout is torch.strided and compat.memory_of(value) != memory for value in others)


def is_simple_tensor(value: Any) -> bool:
    """Returns whether a fake value is a strided tensor without overlapping elements and without a lazy conjugate or
    negative."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    if any(is_symbolic(size) and key(stride) == 0 for size, stride in zip(value.shape, value.stride())):
        return False
    return not (value.is_conj() or value.is_neg() or overlaps_itself(value))


def same_kind(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether two tensors can be copied to each other element by element."""
    return (a.dtype, a.device, keys(a.shape)) == (b.dtype, b.device, keys(b.shape))


def is_window(node: fx.Node, result: fx.Node, target: torch.Tensor, destination: torch.Tensor) -> bool:
    """Returns whether `node`, which is `result` or a view of it, will have the elements of `destination` when `result`
    is stored in the memory of `target`."""
    value, moved = node.meta["val"], result.meta["val"]
    while node is not result:
        if not isinstance(node.target, OpOverload) or not is_view(node.target):
            return False
        node = node.args[0]  # type: ignore[assignment]
        if not is_simple_tensor(node.meta["val"]) or node.meta["val"].dtype != value.dtype:
            return False
    if (
        not is_simple_tensor(value)
        or not same_kind(value, destination)
        or keys(value.stride()) != keys(destination.stride())
    ):
        return False
    offset = value.storage_offset() - moved.storage_offset() + target.storage_offset()
    return bool(key(offset) == key(destination.storage_offset()))
