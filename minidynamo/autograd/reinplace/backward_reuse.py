"""Owns which operations of a backward graph that runs operation by operation write into the memory of an argument.

Autograd adds gradients up in place and fills zeros with parts of them, or writes to a part of one, and its formulas
compute many a step in place; in a functional graph each such step is a new tensor. Generated code has rules of its own
for memory that is used again, so its graphs are left as they are.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.functional.joint_graph import maker_of
from minidynamo.autograd.functional.written_inputs import memory_of
from minidynamo.autograd.graph.graph_builder import GraphBuilder, fake
from minidynamo.autograd.graph.inplace_variants import in_place
from minidynamo.autograd.graph.numbers import keys
from minidynamo.autograd.graph.views import PARTS
from minidynamo.autograd.reinplace.reuse import SYMMETRIC
from minidynamo.compat import OpOverload
from minidynamo.memory.graph_plan import FILLING, may_share

aten = torch.ops.aten


def write_in_place(graph: fx.Graph) -> dict[int, int]:
    """Let pointwise results, and what is put into zeros, take over the memory of an argument that was made for them
    alone. Returns which results of the graph lie in such memory, by position, and how often autograd has written there
    when it has added them up."""
    written: dict[fx.Node, int] = {}
    counts: dict[object, int] = {}
    for node in list(graph.nodes):
        if node.target in PARTS and (base := _part_in_place(node, written)) is not None:
            written[base] = written.get(base, 0)
            counts[memory_of(base)] = written[base]
            continue
        op = _writing(node)
        if op is None:
            continue
        first, *rest = node.args
        swaps = node.target in SYMMETRIC and isinstance(rest[0], fx.Node) and not node.kwargs
        if swaps and not _is_given_up(first, node, written):
            first, rest = rest[0], [first]
        if _is_given_up(first, node, written):
            written[node] = written.get(first, 0) + 1 if node.target is aten.add.Tensor else 0
            for memory in {memory_of(node), memory_of(first)} - {None}:  # views of it were computed before
                counts[memory] = written[node]
            node.target, node.args = op, (first, *rest)
            node.meta["val"] = first.meta["val"]
    results: Any = graph.output_node().args[0]
    found = ((i, memory_of(node)) for i, node in enumerate(results) if isinstance(node, fx.Node))
    return {i: counts[memory] for i, memory in found if memory in counts}


def _part_in_place(scatter: fx.Node, written: Collection[fx.Node]) -> fx.Node | None:
    """Write what `scatter` puts into a part of a tensor where that lies, if the tensor was made for it alone, and
    nobody reads it later. Returns the tensor, which stands for the result from then on."""
    base, source, *where = scatter.args
    if scatter.kwargs or not isinstance(base, fx.Node) or not isinstance(source, fx.Node):
        return None
    if not (base in written or _is_new(base)):
        return None
    if _layout(base) != _layout(scatter) or memory_of(source) == memory_of(base) or not _is_last(scatter, base):
        return None
    graph, op = scatter.graph, PARTS[scatter.target]
    with graph.inserting_before(scatter), GraphBuilder(base.meta["val"].fake_mode, graph).computing(), torch.no_grad():
        view = graph.call_function(op, (base, *where))
        filled = graph.call_function(aten.copy_.default, (view, source))
        part = op(*fake((base, *where)))
    for made in (view, filled):
        made.meta = {**scatter.meta, "val": part}
    scatter.replace_all_uses_with(base)
    graph.erase_node(scatter)
    return base


def _is_last(reader: fx.Node, base: fx.Node) -> bool:
    """Whether all that reads the memory of `base`, which was made by it, stands in front of `reader`."""
    there = [base]
    for node in there:
        there += [user for user in node.users if may_share(user) and user not in there]
        if any(reader < user for user in node.users):
            return False
    return True


def _writing(node: fx.Node) -> OpOverload | None:
    """The operator that writes over its first argument what `node` computes for each of its elements, or puts there."""
    op = node.target
    if not isinstance(op, OpOverload):
        return None
    return in_place(node) if torch.Tag.pointwise in op.tags else FILLING.get(op)


def _is_given_up(value: Any, result: fx.Node, written: Collection[fx.Node]) -> bool:
    """Whether `value` is new memory in the layout of `result`, which alone uses it; that of `written` is new."""
    if not isinstance(value, fx.Node) or len(value.users) != 1 or not (value in written or _is_new(value)):
        return False
    return _layout(value) == _layout(result) and result.args.count(value) == 1


def _is_new(node: fx.Node) -> bool:
    source = maker_of(node)
    if not isinstance(source.target, OpOverload) or source.target.namespace != "aten" or may_share(source):
        return False
    memory = memory_of(node)  # a schema does not say that an operator may return its argument as it is
    return memory is not None and all(memory_of(other) != memory for other in source.all_input_nodes)


def _layout(node: fx.Node) -> Any:
    value = node.meta["val"]
    return (value.dtype, keys(value.shape), keys(value.stride())) if memory_of(node) is not None else node
