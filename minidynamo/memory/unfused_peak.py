"""Owns the peak of a graph without writes, run operation by operation in the order of the program.

The nodes of a decomposed torch operation run as a single operation. The peak of fused code is compared with this peak.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.graph.marks import DIES, PART_OF, RETURNED, WRITTEN, is_inside
from minidynamo.memory.graph_plan import IN_PLACE_FILLS, GraphWalk, may_share

aten = torch.ops.aten

_ZEROS = frozenset((aten.zeros.default, aten.new_zeros.default, aten.zeros_like.default))
_SCATTERS = frozenset((aten.select_scatter.default, aten.slice_scatter.default, aten.diagonal_scatter.default))
"""Operators that replace a part of a tensor; derivative formulas write to a view of zeros instead."""


def peaks_of_operations(gm: fx.GraphModule, *, backward: bool = False) -> Callable[[bool, bool], int]:
    """Returns a function of `taken` and `held` that computes the most bytes that the operations hold at once.

    Counts only inputs marked DIES; the caller owns the others. Results stay alive; with `taken` they die as soon as
    they are final. With `held`, results of forward do not count. In a `backward` graph sums are written over a summand,
    as autograd adds gradients.
    """
    nodes = list(gm.graph.nodes)
    plan = _Operations(nodes, backward).run(nodes)

    @functools.cache
    def peak(taken: bool, held: bool) -> int:
        dying = [node.name for node in nodes if DIES in node.meta and not (held and RETURNED in node.meta)]
        return plan.peak_with_inputs(dying, accumulating=taken)

    return peak


class _Operations(GraphWalk):
    """Records the operations of the program: a call keeps its arguments alive until its last node."""

    def __init__(self, nodes: Sequence[fx.Node], backward: bool) -> None:
        self.backward = backward
        *operations, output = nodes
        ends = {node.meta[PART_OF]: node for node in operations if PART_OF in node.meta}
        last: dict[fx.Node, fx.Node] = {}
        for reader in operations:
            end = ends.get(reader.meta.get(PART_OF), reader)
            last |= {source: max(end, last.get(source, end)) for source in reader.all_input_nodes}
        final: dict[fx.Node, list[fx.Node]] = {}
        for result in output.all_input_nodes:
            final.setdefault(last.get(result, result), []).append(result)
        super().__init__("operations", last | dict.fromkeys(output.all_input_nodes, output), final)
        #: Storage -> nodes that return it.
        self.sharing: dict[object, list[fx.Node]] = {}

    def tensors(self, node: fx.Node) -> list[tuple[int, torch.Tensor]]:
        """Skips lists of tensors: a fused optimizer has written to them."""
        results: Any = node.meta.get("val")
        is_tensor = (
            [isinstance(result, torch.Tensor) for result in results] if isinstance(results, (list, tuple)) else [True]
        )
        return [found for found in super().tensors(node) if is_tensor[found[0]]]

    def needs_memory(self, node: fx.Node) -> bool:
        """Returns False for intermediate results of a call: its kernel need not keep them in memory."""
        return not is_inside(node)

    def shared(self, node: fx.Node, position: int, value: torch.Tensor) -> str | None:
        """Returns a name of the memory that holds a result: written by the program, filled in place, or viewed."""
        storage = compat.memory_of(value)
        self.sharing.setdefault(storage, []).append(node)
        viewed = self.owners.get(storage) if may_share(node) else None
        return self.written(node, position) or self.filled(node) or self.added(node) or viewed

    def written(self, node: fx.Node, position: int) -> str | None:
        """Returns the memory that the program has written a result to.

        It is the memory of an argument, or of a tensor that contains the result. Returns None for a result in memory of
        its own.
        """
        argument = node.meta.get(WRITTEN, {}).get(position)
        source: Any = node.args[argument] if argument is not None and argument < len(node.args) else None
        if isinstance(source, (list, tuple)):
            source = source[position]
        names = self.names.get(source, []) if isinstance(source, fx.Node) else []
        return names[0] if len(names) == 1 else None

    def filled(self, node: fx.Node) -> str | None:
        """Returns the memory that an operator fills in place, as derivative formulas do with zeros, if it has no other
        reader."""
        target: Any = node.target
        source: Any = node.args[0] if target in IN_PLACE_FILLS or target in _SCATTERS else None
        if target in _SCATTERS and source.target not in _ZEROS:  # a program copies these
            return None
        return self.overwritten(node, source)

    def added(self, node: fx.Node) -> str | None:
        """Returns the memory of the gradient to which autograd adds another gradient."""
        if not self.backward or node.target is not aten.add.Tensor or node.kwargs:
            return None
        result: Any = node.meta["val"]
        fitting = (
            summand
            for summand in node.all_input_nodes
            if (value := summand.meta["val"]).shape == result.shape and value.dtype == result.dtype
        )
        return next(filter(None, (self.overwritten(node, summand) for summand in fitting)), None)

    def overwritten(self, node: fx.Node, source: Any) -> str | None:
        """Returns the memory of an operand, if an operation has allocated the memory and nothing reads it later."""
        if not isinstance(source, fx.Node) or source.op == "placeholder":
            return None
        tensors = self.tensors(source)
        sharing = [other for _, value in tensors for other in self.sharing.get(compat.memory_of(value), ())]
        read_later = any(user > node for other in sharing for user in other.users)
        if not sharing or read_later or any(other.op == "placeholder" for other in sharing):
            return None
        return self.names[source][0]
