"""Owns the rules for recomputation: which values backward may compute again, and from which values.

Views cost nothing; cheap pointwise operations cost as much as reading their arguments; activations are worth
recomputing once. `autograd/partition/partition.py` chooses the saved values. This module drops saved values that
backward can restore from the others.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeAlias

import torch
from torch import fx

from minidynamo.autograd.graph.mutation import is_view, named_arguments
from minidynamo.autograd.graph.numbers import is_number
from minidynamo.compat import OpOverload
from minidynamo.config import config
from minidynamo.core.records import record
from minidynamo.graph.rng_replay import draw, draw_again, random_state

# Pointwise operations that cost no more than reading their arguments.
_CHEAP_NAMES = """
    _to_copy _unsafe_view abs add arange bitwise_and bitwise_not bitwise_or bitwise_xor clamp clamp_max clamp_min
    clone copysign div eq fill full full_like ge gt le logical_and logical_not logical_or logical_xor lt masked_fill
    maximum minimum mul ne neg ones ones_like reciprocal relu rsqrt rsub scalar_tensor sign sqrt square sub
    threshold_backward where zeros zeros_like
"""
CHEAP = frozenset(_CHEAP_NAMES.split())
# Activations and their parts: backward computes at most one such operation between a saved value and a use.
_MODERATE_NAMES = """
    elu erf exp gelu hardsigmoid hardswish hardtanh leaky_relu log1p mish sigmoid silu softplus tanh
"""
MODERATE = frozenset(_MODERATE_NAMES.split())
# A recomputed value lives together with its arguments. Without a limit, a loop such as a recurrent net would save no
# state, but all values that the states were computed from.
LONGEST_CHAIN = 8

Chain: TypeAlias = frozenset[fx.Node]
"""The pointwise operations needed to compute a value again."""


def is_random(node: fx.Node) -> bool:
    """Returns whether the result of `node` depends on the state of a random generator."""
    if node.target is random_state:
        return True
    op = node.target
    if not isinstance(op, OpOverload) or torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    return named_arguments(op, node.args, node.kwargs).get("dropout_p") != 0  # attention draws only for dropout


def uses_generator(node: fx.Node) -> bool:
    """Returns whether `node` reads or changes the state of a random generator."""
    return is_random(node) or node.target is draw


def operation_of(node: fx.Node) -> str:
    """Returns the name of the function that `node` calls."""
    if node.target is draw:
        return str(node.args[0])
    return "random_state" if node.target is random_state else str(node.target)


def copy_recomputed(graph: fx.Graph, node: fx.Node, env: Mapping[fx.Node, fx.Node]) -> fx.Node:
    """Appends a copy of the forward node `node` to the backward graph; `env` has the arguments."""
    copy = graph.node_copy(node, env.__getitem__)
    if copy.target is draw:
        copy.target = draw_again
    return copy


def is_view_or_item(node: fx.Node) -> bool:
    """Returns whether `node` is a view or an item of an existing value."""
    return node.target is operator.getitem or (isinstance(node.target, OpOverload) and is_view(node.target))


def with_bases(node: fx.Node) -> list[fx.Node]:
    """Returns `node` and the values that it is a view of, directly or not."""
    values = [node]
    while is_view_or_item(values[-1]) and values[-1].all_input_nodes:  # a constant has no arguments
        values.append(values[-1].all_input_nodes[0])
    several = values[-1].op != "placeholder" and isinstance(values[-1].meta["val"], (tuple, list))
    return values[:-1] if several else values


def is_pointwise(node: fx.Node) -> bool:
    """Returns whether computing `node` a second time may be worth the memory."""
    return config.recompute and not is_random(node) and _name(node) in CHEAP | MODERATE


def _name(node: fx.Node) -> str:
    return str(node.target.overloadpacket.__name__) if isinstance(node.target, OpOverload) else ""


def is_short(chain: Chain) -> bool:
    """Returns whether computing a value again is worth its memory."""
    return len(chain) <= LONGEST_CHAIN and sum(_name(node) in MODERATE for node in chain) <= 1


def recomputable(graph: fx.Graph) -> set[fx.Node]:
    """Returns the values of `graph` that backward may compute again."""
    chains: dict[fx.Node, Chain] = {}
    for node in graph.nodes:
        is_free = is_view_or_item(node)
        if is_free or is_pointwise(node):
            chain = frozenset() if is_free else frozenset([node])
            chain = chain.union(*(chains.get(source, ()) for source in node.all_input_nodes))
            if is_free or is_short(chain):
                chains[node] = chain
    return set(chains)


@record(frozen=True)
class Checkpoints:
    """Values of user checkpoints in a joint graph."""

    #: Values that backward computes again, as the user asked.
    inside: frozenset[fx.Node] = frozenset()
    #: Values that leave a checkpoint. Such values are saved; otherwise backward would run one checkpoint for the input
    #: of the next.
    ends: frozenset[fx.Node] = frozenset()


def checkpoints(graph: fx.Graph) -> Checkpoints:
    """Returns the checkpoints of a joint graph.

    A result of the graph that no node reads does not leave its checkpoint: the caller may overwrite or drop the value.
    """
    calls = (node for node in graph.nodes if node.op == "call_function" and node.target is not random_state)
    marked = [node for node in calls if "checkpoint" in node.meta]
    if not marked:
        return Checkpoints()

    def leaves_checkpoint(node: fx.Node) -> bool:
        return any(user.meta.get("checkpoint") != node.meta["checkpoint"] for user in node.users)

    fixed: set[fx.Node] = set()  # drawn values are saved, in their smallest form
    for node in marked:
        drawn = bool(node.all_input_nodes) and fixed.issuperset(node.all_input_nodes)
        if drawn or is_random(node) or node.meta.get("val") is None:
            fixed.add(node)
    ends = {node for node in marked if node.target is not draw and leaves_checkpoint(node) and not is_number(node)}
    return Checkpoints(frozenset(marked) - fixed - ends, frozenset(ends))


def droppable(
    kept: Iterable[fx.Node],
    sinks: Iterable[fx.Node],
    may_drop: Callable[[fx.Node], bool],
    fixed: Collection[fx.Node] = (),
) -> set[fx.Node]:
    """Returns the nodes of `kept`, given in graph order, that backward can compute from the rest of `kept` instead.

    `sinks` are the values that backward reads. `recomputable` does not know the saved values, so a value that it
    excludes may be a single step away from a saved value. Values in `fixed` are computed once.
    """
    saved = _Saved(kept, sinks, fixed)
    return {node for node in kept if may_drop(node) and saved.drop(node)}


class _Saved:
    """The saved values, and the chain of each value computed by backward."""

    def __init__(self, kept: Iterable[fx.Node], sinks: Iterable[fx.Node], fixed: Collection[fx.Node]) -> None:
        self.kept = set(kept)
        self.fixed = fixed
        #: Chains of values computed by backward.
        self.chains: dict[fx.Node, Chain] = {}
        pending = [node for node in sinks if node not in self.kept]
        while pending:
            missing = [i for i in pending[-1].all_input_nodes if i not in self.chains and i not in self.kept]
            if missing:
                pending += missing
            else:
                node = pending.pop()
                self.chains[node] = self.chain(node, {})

    def chain(self, node: fx.Node, changed: dict[fx.Node, Chain]) -> Chain:
        """Returns the chain of `node`, given the chains of its arguments: those in `changed` first."""
        own = frozenset([node]) if is_pointwise(node) else frozenset[fx.Node]()
        sources = [i for i in node.all_input_nodes if i not in self.kept]
        return own.union(*(changed[i] if i in changed else self.chains[i] for i in sources))

    def drop(self, node: fx.Node) -> bool:
        """Removes `node` from the saved values if all chains stay short. Its arguments must have been decided
        before."""
        self.kept.discard(node)
        changed = self.chains_to(node)
        if changed is None or not self.propagate(node, changed):
            self.kept.add(node)
            return False
        self.chains.update(changed)
        return True

    def chains_to(self, node: fx.Node) -> dict[fx.Node, Chain] | None:
        """Returns the chains of `node` and of uncomputed values before `node`; None if `node` cannot be computed
        again."""
        chains: dict[fx.Node, Chain] = {}
        pending = [node]
        while pending:
            current = pending[-1]
            if is_number(current) or current in self.fixed or not (is_view_or_item(current) or is_pointwise(current)):
                return None
            computable = (self.kept, self.chains, chains)
            missing = [i for i in current.all_input_nodes if not any(i in nodes for nodes in computable)]
            if missing:
                pending += missing
            else:
                chains[pending.pop()] = chain = self.chain(current, chains)
                if not is_short(chain):
                    return None
        return chains

    def propagate(self, node: fx.Node, changed: dict[fx.Node, Chain]) -> bool:
        """Adds to `changed` the new chains of values computed from `node`; returns False if a chain becomes too
        long."""
        pending = [node]
        while pending:
            for user in pending.pop().users:
                if user not in self.chains:
                    continue
                longer = self.chain(user, changed)
                if longer != changed.get(user, self.chains[user]):
                    if not is_short(longer):
                        return False
                    changed[user] = longer
                    pending.append(user)
        return True
