"""Owns the replacement of functional calls by operators that write to their arguments.

The functional form of such an operator copies the written argument. If the argument is a temporary of the call, like
the noise of a random leaky ReLU, the copy is unnecessary.
"""

from __future__ import annotations

import operator
from typing import Any

from torch import fx

from minidynamo.autograd.functional.written_inputs import memory_of
from minidynamo.autograd.graph.mutation import InplaceVariant, inplace_variant_of
from minidynamo.compat import OpOverload
from minidynamo.memory.graph_plan import may_share


def write_to_temporaries(graph: fx.Graph) -> None:
    """Replaces functional calls by writing operators, where every written argument is new memory that only the call
    uses."""
    for node in list(graph.nodes):
        variant = inplace_variant_of(node.target) if isinstance(node.target, OpOverload) else None
        if variant is None or not variant.own or any(position >= len(node.args) for position in variant.written):
            continue
        written = [node.args[position] for position in variant.written]
        if all(_is_temporary(value, node) for value in written):
            _rewrite(node, variant, written)


def _is_temporary(value: Any, call: fx.Node) -> bool:
    """Returns whether `value` is a tensor in separate memory that only `call` uses, once."""
    if not isinstance(value, fx.Node) or not isinstance(value.target, OpOverload) or value.target.namespace != "aten":
        return False
    memory = memory_of(value)
    new = memory is not None and all(memory_of(source) != memory for source in value.all_input_nodes)
    return new and not may_share(value) and list(value.users) == [call] and call.args.count(value) == 1


def _rewrite(node: fx.Node, variant: InplaceVariant, written: list[Any]) -> None:
    """Calls the writing variant; later results are replaced by the written arguments."""
    own = variant.own
    picked = {user: user.args[1] for user in node.users}
    values = node.meta["val"]
    node.target = variant.op
    node.meta["val"] = values[0] if own == 1 else values[:own]
    for user, position in picked.items():
        assert user.target is operator.getitem and isinstance(position, int)
        if position >= own:
            user.replace_all_uses_with(written[position - own])
        elif own == 1:
            user.replace_all_uses_with(node)
        else:
            continue
        node.graph.erase_node(user)
