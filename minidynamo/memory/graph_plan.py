"""Owns the memory plan of a captured graph that runs operation by operation: birth and death of each result.

`codegen/memory/` plans ATen graphs. Tensors that torch's autograd keeps while a captured graph runs are unknown
here.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.memory.plan import MemoryPlan, PlanRecorder
from minidynamo.memory.storages import storage_bytes, strided_in

# Operators whose results are views of the argument although their schemas declare no alias.
_UNDECLARED = frozenset(("unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "_unsafe_view"))

aten = torch.ops.aten

IN_PLACE_FILLS = {
    aten.index_put.default: aten.index_put_.default,
    aten._unsafe_index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_fill.int_Scalar: aten.index_fill_.int_Scalar,
    aten.index_fill.int_Tensor: aten.index_fill_.int_Tensor,
    aten.index_reduce.default: aten.index_reduce_.default,
    aten.put.default: aten.put_.default,
    aten.masked_scatter.default: aten.masked_scatter_.default,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter.reduce: aten.scatter_.reduce,
    aten.scatter.value_reduce: aten.scatter_.value_reduce,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter_reduce.two: aten.scatter_reduce_.two,
}
"""Operator that fills a copy of its first argument -> operator that fills the argument itself."""


def graph_plan(gm: fx.GraphModule, stage: str) -> MemoryPlan:
    """Returns the plan of a graph whose nodes carry fake values; each value dies after its last use."""
    nodes = list(gm.graph.nodes)
    last = {source: node for node in nodes for source in node.all_input_nodes}
    return GraphWalk(stage, last, {}).run(nodes)


class GraphWalk:
    """Records a graph in one walk.

    `last`: value -> node after which the value is dead. `final`: node -> results to hand over after the node.
    """

    def __init__(self, stage: str, last: Mapping[fx.Node, fx.Node], final: Mapping[fx.Node, Sequence[fx.Node]]) -> None:
        self.last = last
        self.final = final
        self.recorder = PlanRecorder(stage)
        #: Storage -> a name of its memory.
        self.owners: dict[object, str] = {}
        #: Node -> the name of each tensor that it returns.
        self.names: dict[fx.Node, list[str]] = {}

    def run(self, nodes: Sequence[fx.Node]) -> MemoryPlan:
        """Records all nodes and returns the plan."""
        dying: dict[fx.Node, list[fx.Node]] = {}
        for node in nodes:
            dying.setdefault(self.last.get(node, node), []).append(node)
        for node in nodes[:-1]:
            origin = () if node.op == "placeholder" else (_label(node), node.meta.get("user_location"))
            if origin:
                self.recorder.step(origin[0])
            self.record(node, *origin)
            self.recorder.free(name for dead in dying.get(node, ()) for name in self.names[dead])
            for result in self.final.get(node, ()):
                for name in self.names[result]:
                    self.recorder.hand_over(name)
        return self.recorder.plan()

    def record(self, node: fx.Node, *origin: Any) -> None:
        """Records the tensors that a node returns: new buffers, or views of known buffers."""
        tensors = self.tensors(node)
        self.names[node] = [node.name if len(tensors) == 1 else f"{node.name}.{i}" for i in range(len(tensors))]
        for name, (position, value) in zip(self.names[node], tensors):
            shared = self.shared(node, position, value)
            self.owners[compat.memory_of(value)] = name
            if (shared is None or not self.recorder.view(name, shared)) and self.needs_memory(node):
                self.recorder.add(name, storage_bytes(value), *origin)

    def tensors(self, node: fx.Node) -> list[tuple[int, torch.Tensor]]:
        """Returns the tensors that a node returns, each with its position among the results."""
        value = node.meta.get("val", node.meta.get("example_value"))
        results = value if isinstance(value, (list, tuple)) else (value,)
        return [(position, tensor) for position, result in enumerate(results) for tensor in strided_in(result)]

    def needs_memory(self, node: fx.Node) -> bool:
        """Returns whether new results of a node take memory."""
        return True

    def shared(self, node: fx.Node, position: int, value: torch.Tensor) -> str | None:
        """Returns a name of the memory that a result shares; None for a result in memory of its own."""
        if node.op != "placeholder" and not may_share(node):
            return None
        return self.owners.get(compat.memory_of(value))


def _label(node: fx.Node) -> str:
    return str(node.target) if isinstance(node.target, (str, compat.OpOverload)) else node.name.rstrip("_0123456789")


def may_share(node: fx.Node) -> bool:
    """Returns whether results may share existing memory. Fake values do not decide: some are shared by several
    nodes."""
    if not isinstance(node.target, compat.OpOverload) or node.target is operator.getitem:
        return True
    declared = any(result.alias_info is not None for result in compat.schema_of(node.target).returns)
    return declared or node.target.overloadpacket.__name__ in _UNDECLARED
