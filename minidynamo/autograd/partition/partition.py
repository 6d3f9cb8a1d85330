"""Owns the split of a joint graph into forward and backward, at the saved tensors that `minimum_cut.py` chooses.

Backward recomputes the other values directly before their first use, so no recomputed value lives longer than the
tensor that eager saves. Nothing is compiled here.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import field, replace
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.functional.joint_graph import Forward, Joint, ancestors
from minidynamo.autograd.functional.storage_resize import grow_inputs, shrink_inputs
from minidynamo.autograd.functional.written_inputs import WrittenInputs, final_values
from minidynamo.autograd.graph.graph_builder import same_layout
from minidynamo.autograd.graph.numbers import is_number, key
from minidynamo.autograd.graph.recomputation import copy_recomputed, with_bases
from minidynamo.autograd.partition.minimum_cut import Network
from minidynamo.autograd.partition.saving import PolicyChoices, SavePolicy
from minidynamo.autograd.trace.checks import unused_checks
from minidynamo.config import config
from minidynamo.core.records import record
from minidynamo.graph.marks import DIES, RETURNED
from minidynamo.memory.graph_plan import may_share
from minidynamo.memory.plan import SavedValue

aten = torch.ops.aten


@record
class Partition:
    """Forward and backward graph. Backward takes `saved`, then tangents; forward returns its results, then the extra
    outputs."""

    #: Returns results, except results that are stored in inputs, then the saved values with source "extra".
    forward: fx.Graph
    backward: fx.Graph
    #: Saved nodes of the joint graph: tensors, then numbers.
    saved: list[fx.Node] = field(default_factory=list)
    #: One per saved value: ("input", flat index), ("result", position) or ("extra", position).
    sources: list[tuple[str, int]] = field(default_factory=list)
    #: One per saved tensor.
    values: list[SavedValue] = field(default_factory=list)
    #: Positions of extra outputs that are views, made by a hook for saved tensors.
    views: list[int] = field(default_factory=list)

    @property
    def results(self) -> int:
        """The number of forward's outputs that are results; the extra outputs follow."""
        returned: Any = self.forward.output_node().args[0]
        return len(returned) - sum(kind == "extra" for kind, _ in self.sources)


def forward_graph(
    forward: Forward,
    kept: Collection[fx.Node] = (),
    backward: Collection[fx.Node] = (),
) -> fx.Graph:
    """Returns the forward graph: results, effects, and checks that `backward` does not contain, in graph order.

    The graph returns the results, then `kept`. No output shares memory with an overwritten input. Values needed only by
    `kept` are computed as early as possible, because their arguments can then die early.
    """
    graph, sizes = forward.graph, forward.sizes
    computes_sizes = ancestors(resize.nbytes for resize in sizes.resizes if isinstance(resize.nbytes, fx.Node))
    needed = ancestors(forward.roots) | computes_sizes
    early = ancestors(kept) - needed
    needed |= ancestors(unused_checks(graph, {*needed, *early, *forward.backward_only, *backward}))
    result = fx.Graph()
    env: dict[fx.Node, fx.Node] = {node: result.node_copy(node) for node in forward.inputs}
    results = [*forward.results, *kept]
    returned = {*results}
    lost = {*forward.overwritten, *sizes.emptied}
    written = WrittenInputs(result, env, forward.writes, lost, needed | early, returned)

    def emit(node: fx.Node) -> None:
        pending = [node]
        while pending:
            ready = pending.pop()
            source = None if ready in returned else _readable_source(ready, early, env)
            env[ready] = result.node_copy(ready, env.__getitem__) if source is None else env[source]
            written.record_aliases(ready, source)
            unlocked = [user for user in ready.users if user in early and user not in env]
            pending += [user for user in reversed(unlocked) if all(i in env for i in user.all_input_nodes)]

    for node in graph.nodes if computes_sizes else ():
        if node in computes_sizes and node not in env:
            emit(node)
    grow_inputs(result, sizes.resizes, env)
    for node in graph.nodes:
        if (node in needed or node in early) and node not in env:
            emit(node)
        written.write_after(node)
    outputs = written.finish(results)
    shrink_inputs(result, sizes.resizes, env)
    result.output(tuple(outputs))
    return result


def _readable_source(node: fx.Node, early: Collection[fx.Node], computed: Collection[fx.Node]) -> fx.Node | None:
    """Returns a source that replaces `node`, a copy that eager saves; else None.

    The source can replace the copy if all readers of the copy are computed directly after the copy, before the program
    writes to the source. Their other arguments must be computed already (`computed`).
    """
    if node.target is not torch.ops.aten.clone.default or node not in early:
        return None
    source, users = node.args[0], early & node.users.keys()
    if not isinstance(source, fx.Node) or not users or not same_layout(node.meta["val"], source.meta["val"]):
        return None
    ready = all(other is node or other in computed for user in users for other in user.all_input_nodes)
    return source if ready and not any(map(may_share, users)) else None


def partition(joint: Joint, save_policy: SavePolicy | None = None) -> Partition:
    """Splits a joint graph. `save_policy` and `config.activation_budget` influence the choice of saved tensors."""
    forward = joint.forward
    visible = {*joint.writable_by_caller, *forward.results}
    held = {new: placeholder for new, placeholder in final_values(forward.writes).items() if new not in visible}
    network = Network(joint, held)
    choices = PolicyChoices() if save_policy is None else network.choices(save_policy)
    choices = choices.with_eager_choices(joint.saved_by_eager)
    by_kind = _with_sources(forward, network.cut_within(config.activation_budget, choices), held)
    saved, extras = [n for _, n in by_kind], [n for kind, n in by_kind if kind == "extra"]
    kinds = {"input": forward.inputs, "result": forward.results, "extra": extras}
    positions = {kind: {n: i for i, n in reversed([*enumerate(nodes)])} for kind, nodes in kinds.items()}
    sources = [(kind, positions[kind][held.get(n, n)]) for kind, n in by_kind]
    returned = [node for position, node in enumerate(forward.results) if position not in joint.results_in_inputs]
    backward = backward_graph(forward.graph, saved, joint.tangents, joint.gradients, forward.backward_only)
    dying = {*extras, *forward.results, *joint.tangents} - {*forward.inputs, *held}
    _mark_dying(backward, [*saved, *joint.tangents], dying, {*forward.results})
    return Partition(
        forward_graph(replace(forward, results=returned), extras, joint.needed),
        backward,
        saved,
        sources,
        values=[network.record(node, choices) for node in saved if not is_number(node)],
    )


def _with_sources(forward: Forward, cut: Sequence[fx.Node], held: Collection[fx.Node]) -> list[tuple[str, fx.Node]]:
    """Returns the saved values with the kinds of their sources: inputs, results, then extra outputs. Tensors precede
    numbers, which are stored separately."""
    results, lost = {*forward.results}, forward.overwritten
    cut = list(dict.fromkeys(n if n in held or n in results else _whole_tensor(n, results | lost) for n in cut))

    def source(n: fx.Node) -> str:
        if n in held or (n.op == "placeholder" and n not in lost):
            return "input"
        return "result" if n in results and n not in lost else "extra"

    kinds = ("input", "result", "extra")
    return sorted(((source(n), n) for n in cut), key=lambda saved: (is_number(saved[1]), kinds.index(saved[0])))


def _whole_tensor(node: fx.Node, others: Collection[fx.Node]) -> fx.Node:
    """Returns the tensor with the same elements that `node` is a view of, if that tensor is computed and not in
    `others`; else `node`.

    Eager has saved that tensor for higher derivatives, and the view is free. Views that depend on symbolic numbers are
    skipped.
    """
    view_value = node.meta["val"]
    for view, source in itertools.pairwise(with_bases(node)) if isinstance(view_value, torch.Tensor) else ():
        value = source.meta["val"]
        if source.op == "placeholder" or source in others or not isinstance(value, torch.Tensor):
            break
        if len(view.all_input_nodes) > 1:
            break
        node = source if key(value.numel()) == key(view_value.numel()) else node
    return node


def _mark_dying(
    backward: fx.Graph, values: Sequence[fx.Node], dying: Collection[fx.Node], returned: Collection[fx.Node]
) -> None:
    """Marks inputs of the backward graph that may die in backward; forward's results among the inputs are marked as
    `returned`.

    A result dies in backward if the caller has dropped the result. `values` are the values of the inputs, in order.
    """
    for node, value in zip(backward.nodes, values):
        if value in dying:
            node.meta[DIES] = True
            if value in returned:
                node.meta[RETURNED] = True


def writable_by_caller(
    graph: fx.Graph,
    forward_nodes: Collection[fx.Node],
    held: Iterable[fx.Node],
    read_by_derivatives: Iterable[fx.Node] = (),
) -> frozenset[fx.Node]:
    """Returns the inputs and results in `held` that eager does not save for backward: the caller may write to them.

    Eager saves the forward values that gradient formulas read, and `read_by_derivatives`. `forward_nodes` are the nodes
    that existed before the first gradient was computed.
    """
    memories = {shared for node in read_by_derivatives for shared in with_bases(node)}
    for node in graph.nodes:
        if node not in forward_nodes and not is_number(node):  # eager keeps sizes as numbers
            memories.update(*(with_bases(source) for source in node.all_input_nodes))
    return frozenset(node for node in held if not is_number(node) and memories.isdisjoint(with_bases(node)))


def backward_graph(
    graph: fx.Graph,
    saved: Sequence[fx.Node],
    tangents: Sequence[fx.Node],
    gradients: Sequence[fx.Node | None],
    backward_only: set[fx.Node],
) -> fx.Graph:
    """Returns the graph that computes `gradients`.

    Nodes in `backward_only` keep the order of `graph`; recomputed nodes are placed as late as possible.
    """
    result = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in (*saved, *tangents):
        env[node] = result.placeholder(node.name)
        env[node].meta.update(node.meta)

    def emit(node: fx.Node) -> None:
        """Emits `node` after its missing dependencies."""
        pending = [node]
        while pending:
            missing = [] if pending[-1] in env else [i for i in pending[-1].all_input_nodes if i not in env]
            if missing:
                pending += reversed(missing)
                continue
            ready = pending.pop()
            if ready not in env:
                assert ready.op != "placeholder", f"{ready} is needed by backward and was not saved"
                env[ready] = copy_recomputed(result, ready, env)

    needed = ancestors(node for node in gradients if node is not None)
    for node in graph.nodes:
        if node in needed and node in backward_only:
            emit(node)
    for gradient in gradients:
        if gradient is not None and gradient not in env:  # the gradient may be a saved tensor
            emit(gradient)
    result.output(tuple(None if node is None else env[node] for node in gradients))
    return result
