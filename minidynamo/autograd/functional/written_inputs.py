"""Owns the writes of a forward graph to its inputs: where each write is placed, and which nodes then read the input.

In a functional graph the data of each write is a separate value. At the position of the program's write the data is
copied into the input, unless a later node reads the old data of the input. Later readers then read the input, so the
value dies at once. No returned value shares memory with an input that is written later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.graph.graph_builder import has_same_result_layout, same_layout
from minidynamo.autograd.graph.mutation import is_torch_operator
from minidynamo.core.records import record
from minidynamo.memory.graph_plan import may_share

aten = torch.ops.aten


@record(frozen=True)
class InputWrite:
    """A write by the program to an input."""

    #: The input.
    placeholder: fx.Node
    #: The data.
    new: fx.Node
    #: The node of the graph after which the program writes.
    after: fx.Node


def last_writes(writes: Iterable[InputWrite]) -> list[InputWrite]:
    """Returns the last write to each input."""
    return list({write.placeholder: write for write in writes}.values())


def final_values(writes: Iterable[InputWrite]) -> dict[fx.Node, fx.Node]:
    """Maps the final value of each written input to the input, where the input can replace the value."""
    return {
        write.new: write.placeholder
        for write in last_writes(writes)
        if write.new.op == "call_function" and same_layout(write.new.meta["val"], write.placeholder.meta["val"])
    }


class WrittenInputs:
    """The writes of a graph that is copied to `graph`, node by node; `env` maps each node to its copy.

    `overwritten` are the inputs that get new data, inside the graph or after it. `needed` are the copied nodes;
    `separate` are the nodes that need memory of their own when the graph ends.
    """

    def __init__(
        self,
        graph: fx.Graph,
        env: dict[fx.Node, fx.Node],
        writes: Sequence[InputWrite],
        overwritten: Iterable[fx.Node],
        needed: Collection[fx.Node],
        separate: Collection[fx.Node],
    ) -> None:
        self.graph = graph
        self.env = env
        self.needed = needed
        self.separate = separate
        self.last = set(last_writes(writes))
        self.writes_after: dict[fx.Node, list[InputWrite]] = {}
        for write in writes:
            self.writes_after.setdefault(write.after, []).append(write)
        # Node -> inputs whose memory the node may share; overwritten input -> nodes that may share its memory.
        self.input_memory = {node: frozenset((node,)) for node in env}
        self.nodes_in_input = {node: [node] for node in overwritten}
        self.inputs = {write.placeholder: env[write.placeholder] for write in writes}
        self.copies: dict[fx.Node, fx.Node] = {}

    def record_aliases(self, node: fx.Node, source: fx.Node | None) -> None:
        """Records, after the copy of `node` or of its replacement `source`, the inputs whose memory the node
        may share."""
        inputs = frozenset(p for i in node.all_input_nodes for p in self.input_memory.get(i, ()))
        if inputs and (source is not None or may_alias_arguments(node)):
            self.input_memory[node] = inputs
            for placeholder in inputs & self.nodes_in_input.keys():
                self.nodes_in_input[placeholder].append(node)

    def write_after(self, node: fx.Node) -> None:
        """Emits the program's writes that follow `node`."""
        for write in self.writes_after.get(node, ()):
            self._write(write)

    def finish(self, results: Iterable[fx.Node]) -> list[fx.Node]:
        """Emits the remaining writes, and returns `results` as the graph returns them."""
        returned = [self._result(node) for node in results]
        copied = [write for write in self.last if write.new in self.input_memory]
        for write in copied:  # a write may read data that another write overwrites
            self._copy(write.new)
        for write in sorted(self.last, key=lambda write: write.placeholder.name):
            self._store(write, self.copies[write.new] if write in copied else self.env[write.new])
        return returned

    def _result(self, node: fx.Node) -> fx.Node:
        if node in self.separate and not self.nodes_in_input.keys().isdisjoint(self.input_memory.get(node, ())):
            self._copy(node)
        return self.copies.get(node, self.env[node])

    def _copy(self, node: fx.Node) -> None:
        if node not in self.copies:
            copy = self.copies[node] = self.graph.call_function(aten.clone.default, (self.env[node],))
            copy.meta.update(node.meta)

    def _write(self, write: InputWrite) -> None:
        """Emits a write to an input, if no later node reads the old data.

        A write that is not the last is emitted only if later nodes can read the data from the input.
        """
        new, placeholder = write.new, write.placeholder
        if new not in self.env or self._is_read(placeholder) or placeholder in self.input_memory.get(new, ()):
            return
        is_moved = new not in self.input_memory and new not in self.separate and new.op == "call_function"
        is_moved = is_moved and (
            same_layout(new.meta["val"], placeholder.meta["val"]) or self._may_be_read_from(placeholder, new)
        )
        if write not in self.last and not (is_moved and self._has_readers(new)):
            return
        for node in self.nodes_in_input[placeholder]:
            if node in self.separate:
                self._copy(node)
        stored = self._store(write, self.env[new])
        self.last.discard(write)
        self.nodes_in_input[placeholder] = []
        if is_moved:
            self.env[new] = stored
            self.input_memory[new] = frozenset((placeholder,))
            self.nodes_in_input[placeholder] = [new]

    def _store(self, write: InputWrite, data: fx.Node) -> fx.Node:
        stored = self.graph.call_function(aten.copy_.default, (self.inputs[write.placeholder], data))
        stored.meta["val"] = write.placeholder.meta["val"]
        if "user_location" in write.new.meta:
            stored.meta["user_location"] = write.new.meta["user_location"]
        return stored

    def _is_read(self, placeholder: fx.Node) -> bool:
        """Returns whether the present data of an input is read later: by a node, or by a delayed write."""
        nodes_in_input = self.nodes_in_input[placeholder]
        return any(map(self._has_readers, nodes_in_input)) or any(write.new in nodes_in_input for write in self.last)

    def _may_be_read_from(self, placeholder: fx.Node, new: fx.Node) -> bool:
        """Returns whether the readers of `new` return the same values, in the same layout, when they read an input with
        gaps.

        Eager reads the input.
        """
        readers = [user for user in new.users if user in self.needed and user not in self.env]
        return all(has_same_result_layout(reader, new, placeholder) for reader in readers)

    def _has_readers(self, node: fx.Node) -> bool:
        return any(user in self.needed and user not in self.env for user in node.users)


def may_alias_arguments(node: fx.Node) -> bool:
    """Returns whether a result may share memory with an argument, by the operator's schema or by the fake values."""
    if not is_torch_operator(node.target) or may_share(node):
        return True
    memory = memory_of(node)
    return memory is not None and any(memory_of(source) == memory for source in node.all_input_nodes)


def memory_of(node: fx.Node) -> object:
    """Returns an identity of the memory of a node's fake value; None for values that are not strided tensors."""
    value = node.meta.get("val")
    return compat.memory_of(value) if isinstance(value, torch.Tensor) and value.layout is torch.strided else None
