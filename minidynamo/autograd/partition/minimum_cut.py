"""Owns the choice of what forward keeps for backward.

The choice is a minimum cut: edges weigh as many bytes as keeping a value costs, what the caller holds is as good as
free, and only views, cheap pointwise operations, and dearer ones that read a kept value, may be computed a second time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.functional.joint_graph import Joint, ancestors, is_effect, maker_of
from minidynamo.autograd.graph.numbers import is_number
from minidynamo.autograd.graph.recomputation import (
    Checkpoints,
    checkpoints,
    is_free,
    is_random,
    operation_of,
    recomputable,
    spared,
    viewed,
)
from minidynamo.autograd.partition.saving import PolicyChoices, SavePolicy, ask, by_cost, within_budget
from minidynamo.graph.rng_replay import random_state
from minidynamo.graph.unbacked_symints import hint_of
from minidynamo.memory.saved import SavedValue

# Weights, in quarters of a byte. What the caller holds anyway costs next to nothing; what it may write to, unlike in
# eager, more than everything else together.
_HELD_BY_CALLER = 2
_EXPOSED = 1 << 60


class Network:
    """The flow network of what backward needs and does not itself depend on gradients. `held` is what lies in inputs in
    the end."""

    def __init__(self, joint: Joint, held: Collection[fx.Node]) -> None:
        forward = joint.forward
        wanted = joint.wanted | ancestors(joint.also)
        recomputed = checkpoints(forward.graph)
        self.also = joint.also
        self.overwritten = forward.overwritten
        self.checkpoints = recomputed
        self.late = forward.sizes.late
        self.once = forward.sizes.early - recomputed.inside
        self.recomputable = recomputable(forward.graph) - recomputed.ends - forward.sizes.early | recomputed.inside
        self.candidates = [node for node in forward.graph.nodes if node in wanted and node not in forward.behind]
        self.behind = forward.behind & wanted
        self.required = ancestors(forward.roots)
        self.results = {*forward.results, *held}
        read = {source for node in self.behind for source in node.all_input_nodes}
        self.read = {shared for source in read for shared in viewed(source)}
        self.gradients = {node for node in joint.gradients if node is not None}
        self.exposed = frozenset(joint.exposed).intersection([*forward.inputs, *forward.results]) - forward.overwritten

    def wishes(self, policy: SavePolicy) -> PolicyChoices:
        """What the user's policy says of each tensor that could be kept, views apart."""
        tensors = [n for n in self.candidates if n.op != "placeholder" and self.weight(n)]
        tensors = [n for n in tensors if n.target is not random_state]
        tensors = [n for n in tensors if not is_free(n) or maker_of(n) is not n]
        fixed = {node for node in tensors if is_effect(maker_of(node))}
        return ask(policy, tensors, lambda n: self.record(n, PolicyChoices()), fixed)

    def cut_within(self, budget: float, wishes: PolicyChoices) -> list[fx.Node]:
        """The values to keep, in graph order: the minimum cut under the wishes and the budget of the user."""
        again = {one for node in wishes.again for one in (node, maker_of(node))}
        usual = (self.recomputable | again) - wishes.keep - self.once

        def cut(again: frozenset[fx.Node]) -> tuple[int, list[fx.Node]]:
            self.recomputable = usual | again
            kept = self.minimum_cut(wishes)
            return sum(self.weight(node) or 0 for node in kept), kept

        _, found = cut(frozenset())
        own = self.read_by_own_checkpoint(found).difference(wishes.keep)
        if own:
            self.checkpoints = Checkpoints(self.checkpoints.inside | own, self.checkpoints.ends - own)
            usual |= own
            _, found = cut(frozenset())
        dropped = spared(found, self.sinks(), lambda n: self.may_drop(n, wishes), self.checkpoints.ends | self.once)
        usual |= dropped
        if budget < 1:
            self.exposed = frozenset()
            kept_anyway = usual | wishes.keep | self.once
            more = [n for n in self.candidates if n.op == "call_function" and n not in kept_anyway and not is_effect(n)]
            found = within_budget(budget, by_cost(more), cut)
        else:
            found = [node for node in found if node not in dropped]
        self.recomputable = usual
        return found

    def read_by_own_checkpoint(self, kept: Collection[fx.Node]) -> frozenset[fx.Node]:
        """Those of `kept` that leave a checkpoint, but backward reads them inside of it alone: it runs that again, as
        eager does, which does not keep them."""
        ends = self.checkpoints.ends.intersection(kept).difference(self.also, self.gradients)
        computed: set[fx.Node] = set()
        pending = list(self.sinks()) if ends else []
        while pending:
            node = pending.pop()
            if node not in kept and node not in computed:
                computed.add(node)
                pending += node.all_input_nodes
        readers = computed | self.behind
        own = {node: {user for user in node.users if user in readers} for node in ends}
        mark = {node: node.meta["checkpoint"] for node in ends}
        return frozenset(n for n in ends if all(user.meta.get("checkpoint") == mark[n] for user in own[n]))

    def sinks(self) -> Iterator[fx.Node]:
        """What backward reads of forward."""
        return filter(self.is_sink, self.candidates)

    def is_sink(self, node: fx.Node) -> bool:
        """Whether backward reads `node`, or returns it, or its derivatives do."""
        return node in self.gradients or node in self.also or any(user in self.behind for user in node.users)

    def may_drop(self, node: fx.Node, wishes: PolicyChoices) -> bool:
        """Whether anything is won by not keeping `node`."""
        return node not in wishes.keep and node not in self.results and (self.weight(node) or 0) > _HELD_BY_CALLER

    def minimum_cut(self, wishes: PolicyChoices) -> list[fx.Node]:
        """The values to keep, in graph order. Of all cuts of least weight it is the one that recomputes least."""
        import networkx  # noqa: PLC0415

        if not self.candidates:
            return []
        net: Any = networkx.DiGraph()
        net.add_nodes_from(("source", "sink"))
        for i, node in enumerate(self.candidates):
            inner, outer = (i, "in"), (i, "out")
            weight = 0 if node in wishes.keep else None if node in wishes.again else self.weight(node)
            net.add_edge(inner, outer, **({} if weight is None else {"capacity": weight}))
            computed = node in self.once or (node in self.required and node not in self.recomputable)
            if node.op == "placeholder" or is_number(node) or computed:  # a number never keeps what it is read of
                net.add_edge("source", inner)
            if self.is_sink(node):
                net.add_edge(outer, "sink")
        index = {node: i for i, node in enumerate(self.candidates)}
        for i, node in enumerate(self.candidates):
            for source in node.all_input_nodes:
                net.add_edge((index[source], "out"), (i, "in"))
        flow = networkx.algorithms.flow.boykov_kolmogorov
        _, (_, late) = networkx.minimum_cut(net, "source", "sink", flow_func=flow)
        return [n for i, n in enumerate(self.candidates) if (i, "in") not in late and (i, "out") in late]

    def weight(self, node: fx.Node) -> int | None:
        """What keeping `node` costs; None for what cannot be kept.

        Inputs and results are as good as free, since the caller holds them; results that backward reads are free: eager
        keeps them, too. But exposed ones are kept only when nothing else will do. A result comes before the input that
        it is computed from: a caller may write to the input (`h += f(h)`). Of everything else bytes decide; among
        equals, first come what forward computes anyway and the copies that autograd makes of what is written, which
        second derivatives take, too.
        """
        value = node.meta["val"]
        if is_number(node):
            return 0
        if node in self.checkpoints.inside or node in self.late:
            return None
        if node in self.exposed:
            return _EXPOSED + 4 * bytes_of(value)
        if node.op == "placeholder" and node not in self.overwritten:
            return _HELD_BY_CALLER
        if not isinstance(value, torch.Tensor):
            return None
        if node in self.results:
            return 0 if node in self.read else _HELD_BY_CALLER - 1
        first = node in self.required or node.target is torch.ops.aten.clone.default
        return 4 * bytes_of(value) + (0 if first else 1)

    def record(self, node: fx.Node, wishes: PolicyChoices) -> SavedValue:
        """What is told of `node`, which is kept, and why it is."""
        value = node.meta["val"]
        op = "input" if node.op == "placeholder" else operation_of(maker_of(node))
        if node in wishes.eager:
            reason = "eager keeps it: hooks for saved tensors see it there, or one of several results needs no more"
        elif node in wishes.keep:
            reason = "save_policy= says so"
        elif node in self.overwritten:
            reason = "an input that forward overwrites; this is a copy of what it held"
        elif node.op == "placeholder":
            reason = "an input, which its owner keeps anyway"
        elif node.target is random_state:
            reason = "random numbers of a checkpoint are drawn again from it"
        elif is_random(node):
            reason = "random numbers do not come out the same a second time"
        elif node not in self.required:
            reason = "only backward needs it, and it is smaller than what it is computed from"
        elif node in self.recomputable:
            reason = "keeping it costs fewer bytes than keeping what it is computed from"
        else:
            reason = "too expensive to compute a second time"
        shape = tuple(value.shape)
        return SavedValue(node.name, shape, value.dtype, bytes_of(value), op, node.meta.get("user_location"), reason)


def bytes_of(value: torch.Tensor) -> int:
    """The bytes that keeping a tensor costs."""
    # Cost only: weights of the minimum cut.
    if value.layout is torch.strided:
        return hint_of(value.untyped_storage().nbytes())
    return hint_of(value.numel()) * value.element_size()
