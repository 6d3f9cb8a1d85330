"""Owns the writes of a forward graph to its inputs: where each stands, and who reads the input from there on.

A graph of values has the data of each write as a value of its own. Where the program has written, the data is copied
into the input, unless something still reads what the input held, and later readers take the input: so the value dies at
once. What is returned lies in no input that is written later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.graph.graph_builder import gives_alike, same_layout
from minidynamo.autograd.graph.mutation import is_torchs
from minidynamo.memory.graph_plan import may_share

aten = torch.ops.aten


@dataclass(frozen=True)
class InputWrite:
    """The program gives an input the data of `new`, `behind` a node of the graph."""

    placeholder: fx.Node
    new: fx.Node
    behind: fx.Node


def last_writes(writes: Iterable[InputWrite]) -> list[InputWrite]:
    """The write to each input that gives it the data which it holds in the end."""
    return list({write.placeholder: write for write in writes}.values())


def holds_in_the_end(writes: Iterable[InputWrite]) -> dict[fx.Node, fx.Node]:
    """The values that written inputs hold in the end, each with its input, which can stand for it."""
    return {
        write.new: write.placeholder
        for write in last_writes(writes)
        if write.new.op == "call_function" and same_layout(write.new.meta["val"], write.placeholder.meta["val"])
    }


class WrittenInputs:
    """The writes of a graph that is being copied to `made`, node by node; `env` has what became of each node.

    `overwritten` are all inputs that get other data, now or behind the graph, `needed` the nodes that are copied, `own`
    those among them that need memory of their own in the end.
    """

    def __init__(
        self,
        made: fx.Graph,
        env: dict[fx.Node, fx.Node],
        writes: Sequence[InputWrite],
        overwritten: Iterable[fx.Node],
        needed: Collection[fx.Node],
        own: Collection[fx.Node],
    ) -> None:
        self.made = made
        self.env = env
        self.needed = needed
        self.own = own
        self.last = set(last_writes(writes))
        self.behind: dict[fx.Node, list[InputWrite]] = {}
        for write in writes:
            self.behind.setdefault(write.behind, []).append(write)
        # Where each node lies that may lie in inputs, and what lies in each input that is overwritten.
        self.inside = {node: frozenset((node,)) for node in env}
        self.lying = {node: [node] for node in overwritten}
        self.inputs = {write.placeholder: env[write.placeholder] for write in writes}
        self.copies: dict[fx.Node, fx.Node] = {}

    def note(self, node: fx.Node, source: fx.Node | None) -> None:
        """Behind the copy of `node`, or behind what stands for it, `source`: it may lie in the memory of inputs."""
        places = frozenset(p for i in node.all_input_nodes for p in self.inside.get(i, ()))
        if places and (source is not None or lies_in_arguments(node)):
            self.inside[node] = places
            for place in places & self.lying.keys():
                self.lying[place].append(node)

    def pass_by(self, node: fx.Node) -> None:
        """Write what the program had written when it came past `node`."""
        for write in self.behind.get(node, ()):
            self._write(write)

    def finish(self, results: Iterable[fx.Node]) -> list[fx.Node]:
        """Write what is left to write; `results` as the graph returns them."""
        returned = [self._result(node) for node in results]
        rest = [write for write in self.last if write.new in self.inside]
        for write in rest:  # one of them may read what another one overwrites
            self._copy(write.new)
        for write in sorted(self.last, key=lambda write: write.placeholder.name):
            self._store(write, self.copies[write.new] if write in rest else self.env[write.new])
        return returned

    def _result(self, node: fx.Node) -> fx.Node:
        if node in self.own and not self.lying.keys().isdisjoint(self.inside.get(node, ())):
            self._copy(node)
        return self.copies.get(node, self.env[node])

    def _copy(self, node: fx.Node) -> None:
        if node not in self.copies:
            copy = self.copies[node] = self.made.call_function(aten.clone.default, (self.env[node],))
            copy.meta.update(node.meta)

    def _write(self, write: InputWrite) -> None:
        """Write to an input, if nothing reads what it holds. What it does not hold in the end is written only where
        it can be read from there."""
        new, place = write.new, write.placeholder
        if new not in self.env or self._is_read(place) or place in self.inside.get(new, ()):
            return
        moves = new not in self.inside and new not in self.own and new.op == "call_function"
        moves = moves and (same_layout(new.meta["val"], place.meta["val"]) or self._may_be_read_from(place, new))
        if write not in self.last and not (moves and self._has_readers(new)):
            return
        for node in self.lying[place]:
            if node in self.own:
                self._copy(node)
        stored = self._store(write, self.env[new])
        self.last.discard(write)
        self.lying[place] = []
        if moves:
            self.env[new] = stored
            self.inside[new] = frozenset((place,))
            self.lying[place] = [new]

    def _store(self, write: InputWrite, data: fx.Node) -> fx.Node:
        made = self.made.call_function(aten.copy_.default, (self.inputs[write.placeholder], data))
        made.meta["val"] = write.placeholder.meta["val"]
        if "user_location" in write.new.meta:
            made.meta["user_location"] = write.new.meta["user_location"]
        return made

    def _is_read(self, place: fx.Node) -> bool:
        """Whether what an input holds now is read later: by a node, or by a write that had to wait."""
        lying = self.lying[place]
        return any(map(self._has_readers, lying)) or any(write.new in lying for write in self.last)

    def _may_be_read_from(self, place: fx.Node, new: fx.Node) -> bool:
        """Whether the readers of `new` give the same, in the same layout, if they read it from an input with gaps,
        which is where eager reads it."""
        readers = [user for user in new.users if user in self.needed and user not in self.env]
        return all(gives_alike(reader, new, place) for reader in readers)

    def _has_readers(self, node: fx.Node) -> bool:
        return any(user in self.needed and user not in self.env for user in node.users)


def lies_in_arguments(node: fx.Node) -> bool:
    """Whether a result may lie in the memory of an argument, by what is declared, or by the fake values."""
    if not is_torchs(node.target) or may_share(node):
        return True
    memory = memory_of(node)
    return memory is not None and any(memory_of(source) == memory for source in node.all_input_nodes)


def memory_of(node: fx.Node) -> object:
    """What tells the memory of a node's fake value from others; None for what is no strided tensor."""
    value = node.meta.get("val")
    return compat.memory_of(value) if isinstance(value, torch.Tensor) and value.layout is torch.strided else None
