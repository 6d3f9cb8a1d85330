"""Owns the choice between ways to split a joint graph, where the minimum cut does not see all that it costs.

Derivatives of higher order hold something beside it: where what only backward computes is kept, which is of no use to
those, an argument may have to be held that eager lets go. And the cut is one for all results, of which some may be
dropped: what another shares with them then stays for it alone, though eager keeps less for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from torch import fx

from minidynamo.autograd.functional.functional_graph import FunctionalGraph
from minidynamo.autograd.functional.joint_graph import Joint
from minidynamo.autograd.graph.numbers import is_number
from minidynamo.autograd.partition.minimum_cut import bytes_of
from minidynamo.autograd.partition.partition import Partition
from minidynamo.autograd.runtime.double_backward import HigherOrder
from minidynamo.autograd.runtime.partial_backward import read_for
from minidynamo.autograd.trace.joint import Trace
from minidynamo.memory.plan import ROUNDING
from minidynamo.memory.storages import storages_of

Split = tuple[Partition, HigherOrder]


def best_split(
    joint: Joint,
    trace: Trace,
    functional: FunctionalGraph,
    differentiable: Sequence[fx.Node],
    split: Callable[[Joint], Split],
) -> Split:
    """What `split` makes of `joint`, whose results in `differentiable` have gradients; or of one that keeps for some of
    them what eager does; or, if less is kept then, of one of which backward computes all that forward as written does
    not."""
    leaves = {functional.placeholders[i] for i, is_leaf in trace.is_leaf.items() if is_leaf and trace.requires_grad[i]}

    def held(higher: HigherOrder) -> int:
        """The bytes that are held though eager does not keep them. Leaves live anyway."""
        values = [functional.placeholders[i] for i in higher.held if not trace.is_leaf[i]]
        return sum(bytes_of(node.meta["val"]) for node in values if node in joint.exposed)

    usual = split(joint)
    chosen = _least_for_each(joint, usual[0], functional.made_forward, differentiable, leaves)
    if chosen:
        usual = split(replace(joint, eager=joint.eager | chosen))
    if not held(usual[1]):
        return usual
    late = joint.wanted - joint.forward.behind - functional.made_forward
    other = split(replace(joint, anew=frozenset(node for node in late if not is_number(node))))
    kept = [_bytes(parts) + held(higher) for parts, higher in (usual, other)]
    return other if kept[1] < kept[0] else usual


def _least_for_each(
    joint: Joint,
    parts: Partition,
    made_forward: Collection[fx.Node],
    results: Sequence[fx.Node],
    leaves: set[fx.Node],
) -> set[fx.Node]:
    """What eager keeps for those of several results that `parts` keep more for, if the others are dropped."""
    chosen: set[fx.Node] = set()
    if len(results) > 1:
        places = read_for(parts.backward, len(parts.saved))
        for place, (result, theirs) in enumerate(zip(results, _kept_in_eager(joint, made_forward))):
            ours = {node for node, found in zip(parts.saved, places) if not found or place in found}
            more = _memory({*ours, result} - leaves) - _memory({*theirs, result} - leaves)
            if more > ROUNDING * len(ours):
                chosen |= theirs
    return chosen


def _kept_in_eager(joint: Joint, made_forward: Collection[fx.Node]) -> list[set[fx.Node]]:
    """For each result what formulas for its gradient read of forward."""
    found: list[set[fx.Node]] = [set() for _ in joint.tangents]
    behind = [node for node in joint.forward.graph.nodes if node not in made_forward]
    places = {node: {place} for place, node in enumerate(joint.tangents)}
    for node in behind:
        places[node] = set().union(*(places.get(source, ()) for source in node.all_input_nodes))
    for node in reversed(behind):
        places[node] = places[node] or set().union(*(places.get(user, ()) for user in node.users))
        for source in node.all_input_nodes:
            if source in made_forward and source not in places and not is_number(source):
                for place in places[node]:
                    found[place].add(source)
    return found


def _memory(nodes: Iterable[fx.Node]) -> int:
    """The bytes of the memory that `nodes` lie in."""
    return sum(storages_of(nodes).values())


def _bytes(parts: Partition) -> int:
    """The bytes that are kept besides arguments and results."""
    kept = [node for node, (kind, _) in zip(parts.saved, parts.sources) if kind == "extra" and not is_number(node)]
    return sum(bytes_of(node.meta["val"]) for node in kept)
