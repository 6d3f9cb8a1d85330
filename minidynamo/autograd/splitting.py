"""Owns the choice between splits of a joint graph, for costs that the minimum cut ignores.

- Derivatives of higher order hold values as well. They cannot use backward-only saved values, and may have to hold an
  argument that eager frees.
- One cut serves all results, and the caller may drop some results. A tensor shared by two results is then kept for the
  remaining result, even if eager keeps fewer bytes for the result.
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
from minidynamo.autograd.runtime.double_backward import HigherOrderPlan
from minidynamo.autograd.runtime.partial_backward import results_reading
from minidynamo.autograd.trace.joint import Trace
from minidynamo.memory.plan import ROUNDING
from minidynamo.memory.storages import storages_of

Split = tuple[Partition, HigherOrderPlan]


def best_split(
    joint: Joint,
    trace: Trace,
    functional: FunctionalGraph,
    differentiable: Sequence[fx.Node],
    split: Callable[[Joint], Split],
) -> Split:
    """Returns the best of up to three splits of `joint`; the results in `differentiable` have gradients.

    - The split of the minimum cut.
    - A split with eager's saved tensors for some results.
    - A split where backward computes all values outside of the program's forward, if fewer bytes are saved.
    """
    leaves = {functional.placeholders[i] for i, is_leaf in trace.is_leaf.items() if is_leaf and trace.requires_grad[i]}

    def held(higher: HigherOrderPlan) -> int:
        """Returns the bytes of held values that eager frees. Leaves are alive in any case."""
        values = [functional.placeholders[i] for i in higher.held if not trace.is_leaf[i]]
        return sum(bytes_of(node.meta["val"]) for node in values if node in joint.writable_by_caller)

    chosen_split = split(joint)
    chosen = _eager_choice_per_result(joint, chosen_split[0], functional.forward_nodes, differentiable, leaves)
    if chosen:
        chosen_split = split(replace(joint, eager=joint.eager | chosen))
    if not held(chosen_split[1]):
        return chosen_split
    recomputed_nodes = joint.wanted - joint.forward.backward_only - functional.forward_nodes
    other = split(replace(joint, recomputed=frozenset(node for node in recomputed_nodes if not is_number(node))))
    saved_bytes = [_bytes(parts) + held(higher) for parts, higher in (chosen_split, other)]
    return other if saved_bytes[1] < saved_bytes[0] else chosen_split


def _eager_choice_per_result(
    joint: Joint,
    parts: Partition,
    forward_nodes: Collection[fx.Node],
    results: Sequence[fx.Node],
    leaves: set[fx.Node],
) -> set[fx.Node]:
    """Returns the tensors that eager saves for a result, for each result with larger saved tensors in `parts`.

    Saved tensors of a result are compared as if all other results were dropped.
    """
    chosen: set[fx.Node] = set()
    if len(results) > 1:
        result_positions = results_reading(parts.backward, len(parts.saved))
        for position, (result, theirs) in enumerate(zip(results, _saved_in_eager(joint, forward_nodes))):
            ours = {
                node for node, positions in zip(parts.saved, result_positions) if not positions or position in positions
            }
            more = _memory({*ours, result} - leaves) - _memory({*theirs, result} - leaves)
            if more > ROUNDING * len(ours):
                chosen |= theirs
    return chosen


def _saved_in_eager(joint: Joint, forward_nodes: Collection[fx.Node]) -> list[set[fx.Node]]:
    """Returns, per result, the forward values that gradient formulas of the result read."""
    saved: list[set[fx.Node]] = [set() for _ in joint.tangents]
    backward_nodes = [node for node in joint.forward.graph.nodes if node not in forward_nodes]
    positions = {node: {position} for position, node in enumerate(joint.tangents)}
    for node in backward_nodes:
        positions[node] = set().union(*(positions.get(source, ()) for source in node.all_input_nodes))
    for node in reversed(backward_nodes):
        positions[node] = positions[node] or set().union(*(positions.get(user, ()) for user in node.users))
        for source in node.all_input_nodes:
            if source in forward_nodes and source not in positions and not is_number(source):
                for position in positions[node]:
                    saved[position].add(source)
    return saved


def _memory(nodes: Iterable[fx.Node]) -> int:
    """Returns the bytes of the memory of `nodes`."""
    return sum(storages_of(nodes).values())


def _bytes(parts: Partition) -> int:
    """Returns the bytes of the saved values that are neither arguments nor results."""
    kept = [node for node, (kind, _) in zip(parts.saved, parts.sources) if kind == "extra" and not is_number(node)]
    return sum(bytes_of(node.meta["val"]) for node in kept)
