"""Owns the search for calls that repeat an earlier call with the same arguments, so that both share one result.

Under autocast each projection of a layer converts the same activation again. A result is shared only if this takes
no more memory than the second call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator

import torch
from torch import fx

from minidynamo.codegen.ir.loops import Buffer
from minidynamo.codegen.ir.size import hint
from minidynamo.codegen.lowering import registry
from minidynamo.compat import OpOverload
from minidynamo.graph.marks import IN_PLACE

Layout = Callable[[fx.Node], Buffer | None]


def repeated_calls(gm: fx.GraphModule, layout: Layout) -> dict[fx.Node, fx.Node]:
    """Returns, for each call whose result an earlier call already has, the earlier call."""
    return Repeats(gm, layout).run()


def _shares_memory(node: fx.Node) -> bool:
    """Returns whether the result of a node may be a view of an argument."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return _shares_memory(node.all_input_nodes[0])
    if not isinstance(node.target, OpOverload):
        return True
    return registry.is_view(node.target) or any(r.alias_info is not None for r in node.target._schema.returns)


class Repeats:
    """The calls of a graph that are lowered, with the positions at which each value is read, also through views."""

    def __init__(self, gm: fx.GraphModule, layout: Layout) -> None:
        self.nodes = list(gm.graph.nodes)
        self.layout = layout
        self.position = {node: k for k, node in enumerate(self.nodes)}
        self.uses: dict[fx.Node, set[int]] = {}
        for node in reversed(self.nodes):
            own = {self.position[user] for user in node.users}
            self.uses[node] = own.union(*(self.uses[user] for user in node.users if _shares_memory(user)))
        self.written = {self._base(node) for node in self._written()}

    def run(self) -> dict[fx.Node, fx.Node]:
        """Pairs each call with the call before it, from the last pair to the first."""
        latest: dict[tuple[object, str], fx.Node] = {}
        pairs: list[tuple[fx.Node, fx.Node]] = []
        for node in self.nodes:
            if self._may_share(node):
                key = node.target, f"{node.args} {node.kwargs}"
                if key in latest:
                    pairs.append((latest[key], node))
                latest[key] = node
        repeated: dict[fx.Node, fx.Node] = {}
        for earlier, later in reversed(pairs):
            if self._saves_memory(earlier, later):
                repeated[later] = earlier
                self.uses[earlier] |= self.uses[later]
                for base in self._bases(later):
                    self.uses[base].discard(self.position[later])
        return repeated

    def _written(self) -> Iterator[fx.Node]:
        for node in self.nodes:
            if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
                yield from node.all_input_nodes

    def _base(self, node: fx.Node) -> fx.Node:
        """Returns the value that owns the memory of a node."""
        while _shares_memory(node) and node.all_input_nodes:
            node = node.all_input_nodes[0]
        return node

    def _bases(self, node: fx.Node) -> set[fx.Node]:
        return {self._base(source) for source in node.all_input_nodes}

    def _may_share(self, node: fx.Node) -> bool:
        """Returns whether a call computes one tensor from tensors that are not overwritten. The tensor is neither
        returned nor overwritten."""
        if registry.find(node.target) is None or registry.is_view(node.target) or not node.all_input_nodes:
            return False
        is_result = self.position[self.nodes[-1]] in self.uses[node]
        overwritten = any(user.meta.get(IN_PLACE) is not None for user in node.users)
        is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
        return is_tensor and not is_result and not overwritten and self.written.isdisjoint(self._bases(node))

    def _saves_memory(self, earlier: fx.Node, later: fx.Node) -> bool:
        """Returns whether the program needs no more memory if the result of `earlier` is kept for the readers of
        `later`: in return, arguments that would die at `later` die before.
        """
        layout = self.layout(later)
        if layout is None or layout != self.layout(earlier):
            return False
        position, last_use = self.position[later], max(self.uses[earlier], default=self.position[earlier])
        if last_use >= position:
            return True
        saved = 0
        for base in self._bases(later):
            memory = self.layout(base)
            other_uses = self.uses[base] - {position}
            if base.op == "call_function" and memory is not None and max(other_uses, default=0) <= last_use:
                saved += hint(memory.nbytes)
        return saved >= hint(layout.nbytes)
