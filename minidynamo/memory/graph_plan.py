"""Owns the memory plan of a captured graph that runs operation by operation: birth and death of each result.

`codegen/memory/` plans ATen graphs. Tensors that torch's autograd keeps while a captured graph runs are unknown
here.
"""

from __future__ import annotations

import operator

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
    return _Walk(stage).run(list(gm.graph.nodes))


class _Walk:
    """Records a graph in one walk. `owners`: storage -> name of its buffer."""

    def __init__(self, stage: str) -> None:
        self.recorder = PlanRecorder(stage)
        self.owners: dict[object, str] = {}
        self.names: dict[fx.Node, list[str]] = {}

    def run(self, nodes: list[fx.Node]) -> MemoryPlan:
        last = {source: node for node in nodes for source in node.all_input_nodes}
        dying: dict[fx.Node, list[fx.Node]] = {}
        for node in nodes:
            dying.setdefault(last.get(node, node), []).append(node)
        for node in nodes:
            if node.op == "placeholder":
                self.record(node, shares=True)
        self.free([node for node in nodes if node.op == "placeholder" and not node.users])
        for node in nodes:
            if node.op not in ("placeholder", "output"):
                self.recorder.step(_label(node))
                self.record(node, shares=may_share(node))
                self.free(dying.get(node, []))
        return self.recorder.plan()

    def record(self, node: fx.Node, shares: bool) -> None:
        """Records the tensors that a node returns: new buffers, or views of known buffers."""
        values = list(strided_in(node.meta.get("val", node.meta.get("example_value"))))
        names = [node.name if len(values) == 1 else f"{node.name}.{i}" for i in range(len(values))]
        self.names[node] = names
        for name, value in zip(names, values):
            key = compat.memory_of(value)
            if shares and key in self.owners:
                self.recorder.view(name, self.owners[key])
            else:
                self.owners[key] = name
                made_by = () if node.op == "placeholder" else (_label(node), node.meta.get("user_location"))
                self.recorder.make(name, storage_bytes(value), *made_by)

    def free(self, nodes: list[fx.Node]) -> None:
        self.recorder.free(name for node in nodes for name in self.names.get(node, ()))


def _label(node: fx.Node) -> str:
    return str(node.target) if isinstance(node.target, (str, compat.OpOverload)) else node.name.rstrip("_0123456789")


def may_share(node: fx.Node) -> bool:
    """Returns whether results may share existing memory. Fake values do not decide: some are shared by several
    nodes."""
    if not isinstance(node.target, compat.OpOverload) or node.target is operator.getitem:
        return True
    declared = any(result.alias_info is not None for result in compat.schema_of(node.target).returns)
    return declared or node.target.overloadpacket.__name__ in _UNDECLARED
