"""Owns in-place operations of a backward graph that runs operation by operation.

Autograd adds gradients in place, fills zeros with parts of gradients, and its formulas compute many steps in place; a
functional graph allocates a new tensor for each step. Graphs for generated code are left alone: the code generator
plans memory itself.
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
from minidynamo.autograd.graph.views import SCATTER_VIEWS
from minidynamo.autograd.reinplace.reuse import COMMUTATIVE
from minidynamo.compat import OpOverload
from minidynamo.memory.graph_plan import IN_PLACE_FILLS, may_share

aten = torch.ops.aten


def reinplace_backward(graph: fx.Graph) -> dict[int, int]:
    """Makes pointwise operations, and writes into zeros, reuse the memory of an argument that has no other reader.

    Returns, by position, the results of the graph in such memory, with the version of autograd's sums.
    """
    written: dict[fx.Node, int] = {}
    counts: dict[object, int] = {}
    for node in list(graph.nodes):
        if node.target in SCATTER_VIEWS and (base := _part_in_place(node, written)) is not None:
            written[base] = written.get(base, 0)
            counts[memory_of(base)] = written[base]
            continue
        op = _writing(node)
        if op is None:
            continue
        first, *rest = node.args
        swaps = node.target in COMMUTATIVE and isinstance(rest[0], fx.Node) and not node.kwargs
        if swaps and not _is_given_up(first, node, written):
            first, rest = rest[0], [first]
        if _is_given_up(first, node, written):
            written[node] = written.get(first, 0) + 1 if node.target is aten.add.Tensor else 0
            for memory in {memory_of(node), memory_of(first)} - {None}:  # includes views computed earlier
                counts[memory] = written[node]
            node.target, node.args = op, (first, *rest)
            node.meta["val"] = first.meta["val"]
    results: Any = graph.output_node().args[0]
    found = ((i, memory_of(node)) for i, node in enumerate(results) if isinstance(node, fx.Node))
    return {i: counts[memory] for i, memory in found if memory in counts}


def _part_in_place(scatter: fx.Node, written: Collection[fx.Node]) -> fx.Node | None:
    """Replaces `scatter` by a write into the part of the tensor, if the tensor was allocated for `scatter` alone and is
    not read later. Returns the tensor, which replaces the result; None if impossible."""
    base, source, *where = scatter.args
    if scatter.kwargs or not isinstance(base, fx.Node) or not isinstance(source, fx.Node):
        return None
    if not (base in written or _is_new(base)):
        return None
    if _layout(base) != _layout(scatter) or memory_of(source) == memory_of(base) or not _is_last(scatter, base):
        return None
    graph, op = scatter.graph, SCATTER_VIEWS[scatter.target]
    with graph.inserting_before(scatter), GraphBuilder(base.meta["val"].fake_mode, graph).computing(), torch.no_grad():
        view = graph.call_function(op, (base, *where))
        filled = graph.call_function(aten.copy_.default, (view, source))
        part = op(*fake((base, *where)))
    for added in (view, filled):
        added.meta = {**scatter.meta, "val": part}
    scatter.replace_all_uses_with(base)
    graph.erase_node(scatter)
    return base


def _is_last(reader: fx.Node, base: fx.Node) -> bool:
    """Returns whether every read of the memory of `base`, which `base` allocated, comes before `reader`."""
    there = [base]
    for node in there:
        there += [user for user in node.users if may_share(user) and user not in there]
        if any(reader < user for user in node.users):
            return False
    return True


def _writing(node: fx.Node) -> OpOverload | None:
    """Returns the operator for writing the elementwise result, or fill value, of `node` over the first argument."""
    op = node.target
    if not isinstance(op, OpOverload):
        return None
    return in_place(node) if torch.Tag.pointwise in op.tags else IN_PLACE_FILLS.get(op)


def _is_given_up(value: Any, result: fx.Node, written: Collection[fx.Node]) -> bool:
    """Returns whether `value` has new memory in the layout of `result`, its only user; memory of `written` is new."""
    if not isinstance(value, fx.Node) or len(value.users) != 1 or not (value in written or _is_new(value)):
        return False
    return _layout(value) == _layout(result) and result.args.count(value) == 1


def _is_new(node: fx.Node) -> bool:
    source = maker_of(node)
    if not isinstance(source.target, OpOverload) or source.target.namespace != "aten" or may_share(source):
        return False
    memory = memory_of(node)  # an operator may return its argument, against its schema
    return memory is not None and all(memory_of(other) != memory for other in source.all_input_nodes)


def _layout(node: fx.Node) -> Any:
    value = node.meta["val"]
    return (value.dtype, keys(value.shape), keys(value.stride())) if memory_of(node) is not None else node
