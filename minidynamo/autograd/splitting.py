"""Owns the choice between ways to split a joint graph: what derivatives of higher order hold beside it counts as well.

Something that only backward computes is of no use to those. Where it is kept, an argument may have to be held that
eager lets go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from minidynamo.autograd.double_backward import HigherOrder
from minidynamo.autograd.functional_graph import FunctionalGraph
from minidynamo.autograd.joint import Trace
from minidynamo.autograd.joint_graph import Joint
from minidynamo.autograd.minimum_cut import bytes_of
from minidynamo.autograd.numbers import is_number
from minidynamo.autograd.partition import Partition

Split = tuple[Partition, HigherOrder]


def best_split(joint: Joint, trace: Trace, functional: FunctionalGraph, split: Callable[[Joint], Split]) -> Split:
    """What `split` makes of `joint`; or, if less is kept then, of one of which backward computes all that forward as
    written does not."""

    def held(higher: HigherOrder) -> int:
        """The bytes that are held though eager does not keep them. Leaves live anyway."""
        values = [functional.placeholders[i] for i in higher.held if not trace.is_leaf[i]]
        return sum(bytes_of(node.meta["val"]) for node in values if node in joint.exposed)

    usual = split(joint)
    if not held(usual[1]):
        return usual
    late = joint.wanted - joint.forward.behind - functional.made_forward
    other = split(replace(joint, anew=frozenset(node for node in late if not is_number(node))))
    kept = [_bytes(parts) + held(higher) for parts, higher in (usual, other)]
    return other if kept[1] < kept[0] else usual


def _bytes(parts: Partition) -> int:
    """The bytes that are kept besides arguments and results."""
    kept = [node for node, (kind, _) in zip(parts.saved, parts.sources) if kind == "extra" and not is_number(node)]
    return sum(bytes_of(node.meta["val"]) for node in kept)
