"""Marks the nodes of a decomposed torch operation: the operation's name, for error messages, and the number of the
call.

A program may call the components itself, and then expects error messages that name the components. The number
identifies the call: one kernel in eager.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from minidynamo.compat import OpOverload
from minidynamo.graph.marks import PART_OF

_numbers = itertools.count()


class Call(NamedTuple):
    """A call that was traced as several nodes: the name of the operation, and a number that is unique in a graph."""

    operation: str
    number: int


def marking(table: Mapping[OpOverload, Callable[..., Any]]) -> dict[OpOverload, Callable[..., Any]]:
    """Returns `table` (operation -> decomposition) with decompositions that mark added nodes of the traced graph. In
    nested decompositions, the mark of the outer call wins.
    """
    return {op: _marking(op, split) for op, split in table.items()}


def _marking(op: OpOverload, split: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(split)
    def marked(*args: Any, **kwargs: Any) -> Any:
        mode = get_proxy_mode()
        if mode is None:
            return split(*args, **kwargs)
        nodes = mode.tracer.graph.nodes
        before = next(iter(reversed(nodes)), None)
        made = split(*args, **kwargs)
        call = Call(op.overloadpacket.__name__, next(_numbers))
        for node in itertools.takewhile(lambda node: node is not before, reversed(nodes)):
            node.meta[PART_OF] = call
        return made

    return marked


def is_inside(node: fx.Node) -> bool:
    """Returns whether all users of a node belong to the same call: its kernel need not keep the result in memory."""
    call = node.meta.get(PART_OF)
    return call is not None and all(user.meta.get(PART_OF) == call for user in node.users)
