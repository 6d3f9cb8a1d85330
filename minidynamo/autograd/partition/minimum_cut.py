"""Owns the choice of saved tensors.

The choice is a minimum cut. An edge weighs the bytes of a saved value; values that the caller holds are nearly free.
Only views, cheap pointwise operations, and expensive pointwise operations on saved values, may be recomputed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.functional.joint_graph import Joint, ancestors, is_effect, producer_of
from minidynamo.autograd.graph.numbers import is_number
from minidynamo.autograd.graph.recomputation import (
    Checkpoints,
    checkpoints,
    droppable,
    is_random,
    is_view_or_item,
    operation_of,
    recomputable,
    with_bases,
)
from minidynamo.autograd.partition.saving import PolicyChoices, SavePolicy, ask_policy, by_cost, within_budget
from minidynamo.graph.rng_replay import random_state
from minidynamo.graph.unbacked_symints import hint_of
from minidynamo.memory.plan import SavedValue

# Weights, in quarters of a byte. Values that the caller holds cost almost nothing. Values that the caller may write to,
# and that eager does not save, cost more than all other values together.
_HELD_BY_CALLER = 2
_WRITABLE = 1 << 60


class Network:
    """The flow network of the forward values that backward needs. `held` are final values of inputs."""

    def __init__(self, joint: Joint, held: Collection[fx.Node]) -> None:
        forward = joint.forward
        needed = joint.needed | ancestors(joint.read_by_derivatives)
        user_checkpoints = checkpoints(forward.graph)
        self.read_by_derivatives = joint.read_by_derivatives
        self.overwritten = forward.overwritten
        self.checkpoints = user_checkpoints
        self.never_saved = forward.sizes.backward_readers
        self.forward_only = forward.sizes.forward_readers - user_checkpoints.inside
        self.recomputable = (
            recomputable(forward.graph) - user_checkpoints.ends - forward.sizes.forward_readers
            | user_checkpoints.inside
        )
        self.candidates = [node for node in forward.graph.nodes if node in needed and node not in forward.backward_only]
        self.backward_only = forward.backward_only & needed
        self.required = ancestors(forward.roots)
        self.results = {*forward.results, *held}
        read = {source for node in self.backward_only for source in node.all_input_nodes}
        self.read = {shared for source in read for shared in with_bases(source)}
        self.gradients = {node for node in joint.gradients if node is not None}
        self.writable_by_caller = (
            frozenset(joint.writable_by_caller).intersection([*forward.inputs, *forward.results]) - forward.overwritten
        )

    def choices(self, policy: SavePolicy) -> PolicyChoices:
        """Returns the answers of the user's policy for each tensor that could be saved, except views."""
        tensors = [n for n in self.candidates if n.op != "placeholder" and self.weight(n)]
        tensors = [n for n in tensors if n.target is not random_state]
        tensors = [n for n in tensors if not is_view_or_item(n) or producer_of(n) is not n]
        fixed = {node for node in tensors if is_effect(producer_of(node))}
        return ask_policy(policy, tensors, lambda n: self.record(n, PolicyChoices()), fixed)

    def cut_within(self, budget: float, choices: PolicyChoices) -> list[fx.Node]:
        """Returns the values to save, in graph order: the minimum cut under the user's policy and budget."""
        recompute = {*choices.recompute, *map(producer_of, choices.recompute)}
        recomputable = (self.recomputable | recompute) - choices.keep - self.forward_only

        def cut(recompute: frozenset[fx.Node]) -> tuple[int, list[fx.Node]]:
            self.recomputable = recomputable | recompute
            kept = self.minimum_cut(choices)
            return sum(self.weight(node) or 0 for node in kept), kept

        _, saved = cut(frozenset())
        not_saved = self.read_by_own_checkpoint(saved).difference(choices.keep)
        if not_saved:
            self.checkpoints = Checkpoints(self.checkpoints.inside | not_saved, self.checkpoints.ends - not_saved)
            recomputable |= not_saved
            _, saved = cut(frozenset())
        dropped = droppable(
            saved, self.sinks(), lambda n: self.may_drop(n, choices), self.checkpoints.ends | self.forward_only
        )
        recomputable |= dropped
        if budget < 1:
            self.writable_by_caller = frozenset()
            decided = recomputable | choices.keep | self.forward_only
            candidates = [
                n for n in self.candidates if n.op == "call_function" and n not in decided and not is_effect(n)
            ]
            saved = within_budget(budget, by_cost(candidates), cut)
        else:
            saved = [node for node in saved if node not in dropped]
        self.recomputable = recomputable
        return saved

    def read_by_own_checkpoint(self, kept: Collection[fx.Node]) -> frozenset[fx.Node]:
        """Returns the saved values that leave a checkpoint, if backward reads the values only inside the checkpoint.

        Backward runs the checkpoint again, as eager does, and eager does not save these values.
        """
        ends = self.checkpoints.ends.intersection(kept).difference(self.read_by_derivatives, self.gradients)
        computed: set[fx.Node] = set()
        pending = list(self.sinks()) if ends else []
        while pending:
            node = pending.pop()
            if node not in kept and node not in computed:
                computed.add(node)
                pending += node.all_input_nodes
        readers = computed | self.backward_only
        readers_of = {node: {user for user in node.users if user in readers} for node in ends}
        checkpoint = {node: node.meta["checkpoint"] for node in ends}
        return frozenset(n for n in ends if all(user.meta.get("checkpoint") == checkpoint[n] for user in readers_of[n]))

    def sinks(self) -> Iterator[fx.Node]:
        """Returns the forward values that backward reads."""
        return filter(self.is_sink, self.candidates)

    def is_sink(self, node: fx.Node) -> bool:
        """Returns whether backward or its derivatives read `node`, or backward returns it."""
        return (
            node in self.gradients
            or node in self.read_by_derivatives
            or any(user in self.backward_only for user in node.users)
        )

    def may_drop(self, node: fx.Node, choices: PolicyChoices) -> bool:
        """Returns whether memory is saved by not saving `node`."""
        return node not in choices.keep and node not in self.results and (self.weight(node) or 0) > _HELD_BY_CALLER

    def minimum_cut(self, choices: PolicyChoices) -> list[fx.Node]:
        """Returns the values to save, in graph order. Of all cuts of least weight, this cut recomputes least."""
        import networkx  # noqa: PLC0415

        if not self.candidates:
            return []
        net: Any = networkx.DiGraph()
        net.add_nodes_from(("source", "sink"))
        for i, node in enumerate(self.candidates):
            inner, outer = (i, "in"), (i, "out")
            weight = 0 if node in choices.keep else None if node in choices.recompute else self.weight(node)
            net.add_edge(inner, outer, **({} if weight is None else {"capacity": weight}))
            is_source = node in self.forward_only or (node in self.required and node not in self.recomputable)
            if node.op == "placeholder" or is_number(node) or is_source:  # a number never keeps its tensor alive
                net.add_edge("source", inner)
            if self.is_sink(node):
                net.add_edge(outer, "sink")
        index = {node: i for i, node in enumerate(self.candidates)}
        for i, node in enumerate(self.candidates):
            for source in node.all_input_nodes:
                net.add_edge((index[source], "out"), (i, "in"))
        flow = networkx.algorithms.flow.boykov_kolmogorov
        _, (_, sink_side) = networkx.minimum_cut(net, "source", "sink", flow_func=flow)
        return [n for i, n in enumerate(self.candidates) if (i, "in") not in sink_side and (i, "out") in sink_side]

    def weight(self, node: fx.Node) -> int | None:
        """Returns the cost of saving `node`; None if `node` cannot be saved.

        - Inputs and results are nearly free, since the caller holds the memory. Results that backward reads are free,
          since eager saves the same results. Values that the caller may write to are saved only without an alternative.
        - A result is preferred to an input from which the result is computed: the caller may write to the input (`h +=
          f(h)`).
        - For other values the bytes decide. Among equal values, values that forward computes anyway are preferred, and
          copies of written tensors, which second derivatives read too.
        """
        value = node.meta["val"]
        if is_number(node):
            return 0
        if node in self.checkpoints.inside or node in self.never_saved:
            return None
        if node in self.writable_by_caller:
            return _WRITABLE + 4 * bytes_of(value)
        if node.op == "placeholder" and node not in self.overwritten:
            return _HELD_BY_CALLER
        if not isinstance(value, torch.Tensor):
            return None
        if node in self.results:
            return 0 if node in self.read else _HELD_BY_CALLER - 1
        is_preferred = node in self.required or node.target is torch.ops.aten.clone.default
        return 4 * bytes_of(value) + (0 if is_preferred else 1)

    def record(self, node: fx.Node, choices: PolicyChoices) -> SavedValue:
        """Returns the description of a saved `node`, with the reason why it is saved."""
        value = node.meta["val"]
        op = "input" if node.op == "placeholder" else operation_of(producer_of(node))
        if node in choices.eager:
            reason = "eager saves it, and hooks for saved tensors see it"
        elif node in choices.keep:
            reason = "save_policy= asks for it"
        elif node in self.overwritten:
            reason = "copy of an input that forward overwrites"
        elif node.op == "placeholder":
            reason = "input (kept alive by the caller)"
        elif node.target is random_state:
            reason = "state from which random numbers of a checkpoint are drawn again"
        elif is_random(node):
            reason = "random numbers cannot be recomputed"
        elif node not in self.required:
            reason = "only backward needs it, and it is smaller than the tensors it is computed from"
        elif node in self.recomputable:
            reason = "saving it costs fewer bytes than saving the tensors it is computed from"
        else:
            reason = "too expensive to recompute"
        shape = tuple(value.shape)
        return SavedValue(node.name, shape, value.dtype, bytes_of(value), op, node.meta.get("user_location"), reason)


def bytes_of(value: torch.Tensor) -> int:
    """Returns the bytes that saving a tensor costs."""
    # Cost only: weights of the minimum cut.
    if value.layout is torch.strided:
        return hint_of(value.untyped_storage().nbytes())
    return hint_of(value.numel()) * value.element_size()
