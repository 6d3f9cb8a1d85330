"""Owns which calls of a functional graph become calls of the operator that writes to its arguments.

The functional form of such an operator copies what would be written. Where that was made for the call alone, as the
noise of a random leaky ReLU is, nobody can tell the copy from the original.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.mutation import Mutation, mutation_of, named_arguments
from minidynamo.autograd.written_inputs import memory_of
from minidynamo.compat import OpOverload
from minidynamo.graph_memory import may_share

_SUFFIX = "_functional"


def write_to_temporaries(graph: fx.Graph) -> None:
    """Call the operators that write, where what they write is new memory that the call alone uses."""
    for node in list(graph.nodes):
        found = _writing_operator(node.target) if isinstance(node.target, OpOverload) else None
        if found is None:
            continue
        op, mutation = found
        named = named_arguments(node.target, node.args, node.kwargs)
        written = [named[name] for name in mutation.arguments]
        if all(_is_temporary(value, node) for value in written):
            _rewrite(node, op, mutation, written)


@functools.cache
def _writing_operator(functional: OpOverload) -> tuple[OpOverload, Mutation] | None:
    """The operator of torch whose functional form, with results of its own, an operator is."""
    packet = functional.overloadpacket
    if functional.namespace != "aten" or not packet.__name__.endswith(_SUFFIX):
        return None
    twin = getattr(torch.ops.aten, packet.__name__.removesuffix(_SUFFIX), None)
    for op in (getattr(twin, name) for name in twin.overloads()) if twin is not None else ():
        mutation = mutation_of(op)
        if mutation is not None and mutation.functional is functional and _has_results_of_its_own(mutation):
            return op, mutation
    return None


def _has_results_of_its_own(mutation: Mutation) -> bool:
    return bool(mutation.returns) and all(name is None for name in mutation.returns) and not mutation.dropped


def _is_temporary(value: Any, call: fx.Node) -> bool:
    """Whether `value` is a tensor of its own that only `call` uses, once."""
    if not isinstance(value, fx.Node) or not isinstance(value.target, OpOverload) or value.target.namespace != "aten":
        return False
    memory = memory_of(value)
    new = memory is not None and all(memory_of(source) != memory for source in value.all_input_nodes)
    return new and not may_share(value) and list(value.users) == [call] and call.args.count(value) == 1


def _rewrite(node: fx.Node, op: OpOverload, mutation: Mutation, written: list[fx.Node]) -> None:
    """Call `op`; the results behind its own are what it has written."""
    own = mutation.own_results
    picked = {user: user.args[1] for user in node.users}
    values = node.meta["val"]
    node.target = op
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
