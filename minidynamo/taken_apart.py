"""Owns what ATen nodes note that are parts of an operation of torch: the operation, in whose words they raise errors.

A program may call the parts itself, and then expects their own words; nothing else tells the two apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx.experimental.proxy_tensor import get_proxy_mode

from minidynamo.compat import OpOverload

PART_OF = "part_of"
"""Where a node notes the name of the operation that it is a part of."""


def noting(op: OpOverload, split: Callable[..., Any]) -> Callable[..., Any]:
    """`split`, which computes what `op` does; the nodes that it adds to a graph that is being traced note that."""

    def noted(*args: Any, **kwargs: Any) -> Any:
        mode = get_proxy_mode()
        if mode is None:
            return split(*args, **kwargs)
        nodes = mode.tracer.graph.nodes
        before = next(iter(reversed(nodes)), None)
        made = split(*args, **kwargs)
        for node in reversed(nodes):
            if node is before:
                break
            node.meta.setdefault(PART_OF, op.overloadpacket.__name__)
        return made

    return noted
