"""Owns the question what backward may compute a second time, and from what.

Views cost nothing; cheap pointwise operations cost as much as reading their arguments; activations are worth it once.
Which values are kept is decided by `autograd/partition/partition.py`; what is given up again of that choice, because
other kept values bring it back, is decided here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import fx

from minidynamo.autograd.graph.mutation import is_view, named_arguments
from minidynamo.autograd.graph.numbers import is_number
from minidynamo.compat import OpOverload
from minidynamo.config import config
from minidynamo.graph.rng_replay import draw, draw_again, random_state

# Pointwise operations that cost no more than reading their arguments.
_CHEAP_NAMES = """
    _to_copy _unsafe_view abs add arange bitwise_and bitwise_not bitwise_or bitwise_xor clamp clamp_max clamp_min
    clone copysign div eq fill full full_like ge gt le logical_and logical_not logical_or logical_xor lt masked_fill
    maximum minimum mul ne neg ones ones_like reciprocal relu rsqrt rsub scalar_tensor sign sqrt square sub
    threshold_backward where zeros zeros_like
"""
CHEAP = frozenset(_CHEAP_NAMES.split())
# Activations and their parts, which are worth their memory once: backward computes them from a value that is kept, but
# never one from another.
_MODERATE_NAMES = """
    elu erf exp gelu hardsigmoid hardswish hardtanh leaky_relu log1p mish sigmoid silu softplus tanh
"""
MODERATE = frozenset(_MODERATE_NAMES.split())
# What is computed again lives beside what it is computed from. In a loop that runs on, such as a recurrent net, nothing
# would be kept of the state but all that it was ever computed from.
LONGEST_CHAIN = 8

Chain: TypeAlias = frozenset[fx.Node]
"""The pointwise operations that computing a value again comes to."""


def is_random(node: fx.Node) -> bool:
    """Whether the result of `node` hangs on the state of a random generator."""
    if node.target is random_state:
        return True
    op = node.target
    if not isinstance(op, OpOverload) or torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    return named_arguments(op, node.args, node.kwargs).get("dropout_p") != 0  # attention draws for dropout alone


def uses_generator(node: fx.Node) -> bool:
    """Whether `node` reads the state of a random generator, or leaves another one."""
    return is_random(node) or node.target is draw


def operation_of(node: fx.Node) -> str:
    """The name of what `node` calls."""
    if node.target is draw:
        return str(node.args[0])
    return "random_state" if node.target is random_state else str(node.target)


def computed_again(made: fx.Graph, node: fx.Node, env: Mapping[fx.Node, fx.Node]) -> fx.Node:
    """Append `node`, which stands in forward as well, to the graph of backward; `env` has its arguments there."""
    copy = made.node_copy(node, env.__getitem__)
    if copy.target is draw:
        copy.target = draw_again
    return copy


def is_free(node: fx.Node) -> bool:
    """Whether `node` only takes apart or views what is there."""
    return node.target is operator.getitem or (isinstance(node.target, OpOverload) and is_view(node.target))


def viewed(node: fx.Node) -> list[fx.Node]:
    """`node` and all that it is a view of: they share their memory, and the count of writes to it."""
    found = [node]
    while is_free(found[-1]) and found[-1].all_input_nodes:  # a constant is a view of nothing
        found.append(found[-1].all_input_nodes[0])
    several = found[-1].op != "placeholder" and isinstance(found[-1].meta["val"], (tuple, list))
    return found[:-1] if several else found


def is_pointwise(node: fx.Node) -> bool:
    """Whether a second computation of `node` may be worth the memory."""
    return config.recompute and not is_random(node) and _name(node) in CHEAP | MODERATE


def _name(node: fx.Node) -> str:
    return str(node.target.overloadpacket.__name__) if isinstance(node.target, OpOverload) else ""


def is_short(chain: Chain) -> bool:
    """Whether computing a value again is worth its memory."""
    return len(chain) <= LONGEST_CHAIN and sum(_name(node) in MODERATE for node in chain) <= 1


def recomputable(graph: fx.Graph) -> set[fx.Node]:
    """The values of `graph` that may be computed again in backward."""
    chains: dict[fx.Node, Chain] = {}
    for node in graph.nodes:
        again = is_free(node)
        if again or is_pointwise(node):
            chain = frozenset() if again else frozenset([node])
            chain = chain.union(*(chains.get(source, ()) for source in node.all_input_nodes))
            if again or is_short(chain):
                chains[node] = chain
    return set(chains)


@dataclass(frozen=True)
class Checkpoints:
    """The values `inside` of checkpoints, which backward computes again as the user has asked for, and those that leave
    one (`ends`), which it does not: or else it would run one checkpoint for the sake of the next."""

    inside: frozenset[fx.Node] = frozenset()
    ends: frozenset[fx.Node] = frozenset()


def checkpoints(graph: fx.Graph) -> Checkpoints:
    """The checkpoints of a joint graph. What is only returned leaves none: its caller may write to it, or drop it."""
    calls = (node for node in graph.nodes if node.op == "call_function" and node.target is not random_state)
    marked = [node for node in calls if "checkpoint" in node.meta]
    if not marked:
        return Checkpoints()

    def leaves(node: fx.Node) -> bool:
        return any(user.meta.get("checkpoint") != node.meta["checkpoint"] for user in node.users)

    fixed: set[fx.Node] = set()  # what is drawn once is kept, in the form that takes least
    for node in marked:
        drawn = bool(node.all_input_nodes) and fixed.issuperset(node.all_input_nodes)
        if drawn or is_random(node) or node.meta.get("val") is None:
            fixed.add(node)
    ends = {node for node in marked if node.target is not draw and leaves(node) and not is_number(node)}
    return Checkpoints(frozenset(marked) - fixed - ends, frozenset(ends))


def spared(
    kept: Iterable[fx.Node],
    sinks: Iterable[fx.Node],
    may_drop: Callable[[fx.Node], bool],
    fixed: Collection[fx.Node] = (),
) -> set[fx.Node]:
    """Those of `kept`, in graph order, that backward can as well compute from the rest of them.

    `sinks` are the values that backward reads; all of them can be computed from `kept`. What `recomputable` rules out
    without knowing what will be kept may turn out to be a step away from it. What is `fixed` is computed once.
    """
    choice = _Choice(kept, sinks, fixed)
    return {node for node in kept if may_drop(node) and choice.drop(node)}


class _Choice:
    """What is kept, and the chain of each value that backward computes from it."""

    def __init__(self, kept: Iterable[fx.Node], sinks: Iterable[fx.Node], fixed: Collection[fx.Node]) -> None:
        self.kept = set(kept)
        self.fixed = fixed
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
        """What computing `node` comes to when the chains of its arguments are those in `changed` or as they were."""
        own = frozenset([node]) if is_pointwise(node) else frozenset[fx.Node]()
        sources = [i for i in node.all_input_nodes if i not in self.kept]
        return own.union(*(changed[i] if i in changed else self.chains[i] for i in sources))

    def drop(self, node: fx.Node) -> bool:
        """Stop keeping `node` if all chains stay short without it. What comes before it has been decided."""
        self.kept.discard(node)
        changed = self.chains_to(node)
        if changed is None or not self.follow(node, changed):
            self.kept.add(node)
            return False
        self.chains.update(changed)
        return True

    def chains_to(self, node: fx.Node) -> dict[fx.Node, Chain] | None:
        """The chains of `node`, and of what it is computed from and backward has not computed so far; None if it
        cannot be computed again."""
        made: dict[fx.Node, Chain] = {}
        pending = [node]
        while pending:
            current = pending[-1]
            if is_number(current) or current in self.fixed or not (is_free(current) or is_pointwise(current)):
                return None
            known = (self.kept, self.chains, made)
            missing = [i for i in current.all_input_nodes if not any(i in place for place in known)]
            if missing:
                pending += missing
            else:
                made[pending.pop()] = chain = self.chain(current, made)
                if not is_short(chain):
                    return None
        return made

    def follow(self, node: fx.Node, changed: dict[fx.Node, Chain]) -> bool:
        """Enter into `changed` what becomes of the values that are computed from `node`; False if it is too much."""
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
