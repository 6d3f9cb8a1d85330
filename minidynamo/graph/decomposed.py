"""Owns what ATen nodes note that are parts of an operation of torch: which one, in whose words they raise errors, and
which call of it, which is one kernel in eager.

A program may call the parts itself, and then expects their own words; nothing else tells the two apart.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import fx
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from minidynamo.compat import OpOverload

PART_OF = "part_of"
"""Where a node notes the `Call` that it is a part of."""

_numbers = itertools.count()


class Call(NamedTuple):
    """A call that was traced as several: the name of the operation, and a number that no other call in a graph has."""

    operation: str
    number: int


def noting(table: Mapping[OpOverload, Callable[..., Any]]) -> dict[OpOverload, Callable[..., Any]]:
    """`table`, which has for operations what computes the same of several; the nodes that these add to a graph that is
    being traced note the call. A part that is itself such a call is a part of the outer one."""
    return {op: _noting(op, split) for op, split in table.items()}


def _noting(op: OpOverload, split: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(split)
    def noted(*args: Any, **kwargs: Any) -> Any:
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

    return noted


def is_inside(node: fx.Node) -> bool:
    """Whether nobody but the rest of one call takes what a node makes: its kernel need not keep that in memory."""
    call = node.meta.get(PART_OF)
    return call is not None and all(user.meta.get(PART_OF) == call for user in node.users)
