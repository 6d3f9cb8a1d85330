"""Owns the zeros that concatenations read: one element, expanded to the shape.

Autograd puts zeros into the gradient of a split tensor for each part without a gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten


def expand_zeros(graph: fx.Graph) -> None:
    """Replaces zeros that only concatenations read, so that they take no memory."""
    for node in graph.find_nodes(op="call_function", target=aten.zeros.default):
        if {user.target for user in node.users} != {aten.cat.default}:
            continue
        sizes: Any = node.args[0]
        value = node.meta["val"]
        with graph.inserting_before(node):
            zero = graph.call_function(aten.zeros.default, ([],), dict(node.kwargs))
            expanded = graph.call_function(aten.expand.default, (zero, sizes))
        zero.meta = {**node.meta, "val": value.new_zeros(())}
        expanded.meta = {**node.meta, "val": zero.meta["val"].expand(value.shape)}
        node.replace_all_uses_with(expanded)
        graph.erase_node(node)
