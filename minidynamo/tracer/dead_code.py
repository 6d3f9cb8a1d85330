"""Owns the removal of graph nodes that nobody needs: a node goes only when running it can change nothing.

Operations that write to a tensor, draw random numbers or are not torch's own are kept, whether used or not.
"""

from __future__ import annotations

import operator

import torch.fx

from minidynamo.compat import OPERATOR_NAMESPACES
from minidynamo.switches import is_switch

# Operations that use a random number generator or update statistics without saying so in their schema.
_IMPURE_WORDS = ("rand", "dropout", "rrelu", "bernoulli", "multinomial", "normal", "poisson", "binomial", "norm")
_IMPURE_NAMES = {"scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu"}


def remove_dead_code(graph: torch.fx.Graph) -> None:
    """Erase unused pure nodes, last first, and switches of settings when nothing else is left."""
    for node in reversed(list(graph.nodes)):
        if not node.users and is_pure(node):
            graph.erase_node(node)
    calls = [node for node in graph.nodes if node.op in ("call_function", "call_method")]
    if all(is_switch(node.target) for node in calls):
        for node in calls:
            graph.erase_node(node)


def is_pure(node: torch.fx.Node) -> bool:
    """Whether leaving the node out can change nothing but its own result."""
    if node.meta.get("mutates") or "out" in node.kwargs:
        return False
    if node.op == "call_method":
        return not _may_be_impure(str(node.target))
    if node.op != "call_function" or is_switch(node.target):
        return False
    name = getattr(node.target, "__name__", "")
    if getattr(operator, name, None) is node.target:
        return True
    return any(getattr(space, name, None) is node.target for space in OPERATOR_NAMESPACES) and not _may_be_impure(name)


def _may_be_impure(name: str) -> bool:
    return name in _IMPURE_NAMES or name.endswith("_") or any(word in name for word in _IMPURE_WORDS)
