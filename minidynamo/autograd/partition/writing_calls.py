"""Owns which calls of a functional graph become calls of the operator that writes to its arguments.

The functional form of such an operator copies what would be written. Where that was made for the call alone, as the
noise of a random leaky ReLU is, nobody can tell the copy from the original.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from minidynamo.autograd.functional.written_inputs import memory_of
from minidynamo.autograd.graph.inplace_variants import Twin, inplace_variant_of
from minidynamo.compat import OpOverload
from minidynamo.memory.graph_plan import may_share


def write_to_temporaries(graph: fx.Graph) -> None:
    """Call the operators that write, where what they write is new memory that the call alone uses."""
    for node in list(graph.nodes):
        twin = inplace_variant_of(node.target) if isinstance(node.target, OpOverload) else None
        if twin is None or not twin.own or any(position >= len(node.args) for position in twin.written):
            continue
        written = [node.args[position] for position in twin.written]
        if all(_is_temporary(value, node) for value in written):
            _rewrite(node, twin, written)


def _is_temporary(value: Any, call: fx.Node) -> bool:
    """Whether `value` is a tensor of its own that only `call` uses, once."""
    if not isinstance(value, fx.Node) or not isinstance(value.target, OpOverload) or value.target.namespace != "aten":
        return False
    memory = memory_of(value)
    new = memory is not None and all(memory_of(source) != memory for source in value.all_input_nodes)
    return new and not may_share(value) and list(value.users) == [call] and call.args.count(value) == 1


def _rewrite(node: fx.Node, twin: Twin, written: list[Any]) -> None:
    """Call the twin; the results behind its own are what it has written."""
    own = twin.own
    picked = {user: user.args[1] for user in node.users}
    values = node.meta["val"]
    node.target = twin.op
    node.meta["val"] = values[0] if own == 1 else values[:own]
    for user, place in picked.items():
        assert user.target is operator.getitem and isinstance(place, int)
        if place >= own:
            user.replace_all_uses_with(written[place - own])
        elif own == 1:
            user.replace_all_uses_with(node)
        else:
            continue
        node.graph.erase_node(user)
