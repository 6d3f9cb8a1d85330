"""Owns the split of a joint graph into forward and backward, at the saved tensors that `minimum_cut.py` chooses.

Backward recomputes other values directly before their first use, so no recomputed value lives longer than the saved
tensor of eager. If a saved value is a part of a tensor that lives until backward, because the program has written the
value into a part of a result, forward saves a view of the result, as eager does. Functional calls whose written
argument is a temporary of the call, like the noise of a random leaky ReLU, become operators that write to the argument:
the functional form would copy it. Nothing is compiled here.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.functional.joint_graph import Forward, Joint, ancestors
from minidynamo.autograd.functional.storage_resize import grow_inputs, shrink_inputs
from minidynamo.autograd.functional.written_inputs import WrittenInputs, final_values, memory_of
from minidynamo.autograd.graph.graph_builder import GraphBuilder, fake, has_same_result_layout, same_layout
from minidynamo.autograd.graph.mutation import InplaceVariant, inplace_variant_of
from minidynamo.autograd.graph.numbers import is_number, is_symbolic, key
from minidynamo.autograd.graph.recomputation import copy_recomputed, viewed
from minidynamo.autograd.graph.views import SCATTER_VIEWS
from minidynamo.autograd.partition.minimum_cut import Network
from minidynamo.autograd.partition.saving import PolicyChoices, SavePolicy
from minidynamo.autograd.trace.checks import unused_checks
from minidynamo.compat import OpOverload
from minidynamo.config import config
from minidynamo.graph.marks import DIES, RETURNED, WRITTEN
from minidynamo.graph.pytree import nodes_in
from minidynamo.memory.graph_plan import may_share
from minidynamo.memory.plan import SavedValue

aten = torch.ops.aten

Step = tuple[Any, tuple[Any, ...]]
Part = tuple[fx.Node, list[Step]]
"""A tensor that lives until backward, and the view steps (operator, further arguments) that lead to a part of it."""


def saved_parts(kept: Iterable[fx.Node], lasting: Collection[fx.Node]) -> dict[fx.Node, Part]:
    """Maps values of `kept` to parts of tensors in `lasting`, where the program has written the values."""
    parts = {}
    for node in kept:
        part = _part(node, lasting)
        if part is not None and _is_read_alike(node, part):
            parts[node] = part
    return parts


def view_of(graph: fx.Graph, part: Part, env: Mapping[fx.Node, fx.Node], like: fx.Node) -> fx.Node:
    """Emits a part at the end of `graph`; `env` maps each node to its copy."""
    viewed, steps = part
    viewed = env[viewed]
    for op, args in steps:
        fakes = _applied(op, viewed.meta["val"], args)
        viewed = graph.call_function(op, (viewed, *fx.map_arg(args, env.__getitem__)))
        viewed.meta = {**like.meta, "val": fakes}
    return viewed


def fake_view(part: Part) -> torch.Tensor:
    """Returns the fake value of a part."""
    value = part[0].meta["val"]
    for op, args in part[1]:
        value = _applied(op, value, args)
    return value  # type: ignore[no-any-return]


def _part(node: fx.Node, lasting: Collection[fx.Node], is_view: bool = False) -> Part | None:
    """Returns how `node` is a part of a lasting tensor; else None. `is_view`: `node` is a view of all of a written
    tensor."""
    if not is_view and node.meta.get(WRITTEN) != {0: 0}:
        return None
    for user in node.users:
        step = _step(node, user)
        if step is not None:
            part = (user, []) if user in lasting else _part(user, lasting, user.target not in SCATTER_VIEWS)
            if part is not None:
                return part[0], [*part[1], step]
    return None


def _step(node: fx.Node, user: fx.Node) -> Step | None:
    """Returns the view that finds `node` in `user`, if `user` contains `node`; else None."""
    if user.target in SCATTER_VIEWS and user.args[1] is node and WRITTEN in user.meta and not user.kwargs:
        return SCATTER_VIEWS[user.target], user.args[2:]
    if node.target not in SCATTER_VIEWS or user.target not in (aten.view.default, aten.t.default, aten.transpose.int):
        return None
    shape = [*node.meta["val"].shape]
    if any(map(is_symbolic, shape)):
        return None
    return user.target, (shape,) if user.target is aten.view.default else user.args[1:]


def _is_read_alike(node: fx.Node, part: Part) -> bool:
    """Returns whether the readers of `node` return the same values, in the same layout, when they read the part."""
    value = fake_view(part)
    if same_layout(node.meta["val"], value):
        return True
    substitute = fx.Graph().placeholder(node.name)
    substitute.meta["val"] = value
    return all(user.target in SCATTER_VIEWS or has_same_result_layout(user, node, substitute) for user in node.users)


def _applied(op: Any, value: torch.Tensor, args: tuple[Any, ...]) -> Any:
    with GraphBuilder(value.fake_mode, fx.Graph()).computing(), torch.no_grad():  # type: ignore[attr-defined]
        return op(value, *fake(args))


@dataclass
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
    #: Positions of extra outputs that are views of results or of extra outputs.
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
    parts: Mapping[fx.Node, Part] = {},
) -> fx.Graph:
    """Returns the forward graph: results, effects, and checks that `backward` does not contain, in graph order.

    The graph returns the results, then `kept`. No output shares memory with an overwritten input. Values needed only by
    `kept` are computed as early as possible, because their arguments can then die early; `kept` values in `parts` are
    returned as views.
    """
    graph, sizes = forward.graph, forward.sizes
    computes_sizes = ancestors(resize.nbytes for resize in sizes.resizes if isinstance(resize.nbytes, fx.Node))
    needed = ancestors(forward.roots) | computes_sizes
    early = ancestors(kept) - needed
    needed |= ancestors(unused_checks(graph, {*needed, *early, *forward.backward_only, *backward}))
    result = fx.Graph()
    env: dict[fx.Node, fx.Node] = {node: result.node_copy(node) for node in forward.inputs}
    results = [*forward.results, *kept]
    whole = [node for node in results if node not in parts]
    returned = {*results}
    lost = {*forward.overwritten, *sizes.emptied}
    written = WrittenInputs(result, env, forward.writes, lost, needed | early, {*whole})

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
    outputs = env | dict(zip(whole, written.finish(whole)))
    shrink_inputs(result, sizes.resizes, env)
    outputs |= {node: view_of(result, part, outputs, node) for node, part in parts.items()}
    result.output(tuple(map(outputs.__getitem__, results)))
    write_to_temporaries(result)
    return result


def _readable_source(node: fx.Node, early: Collection[fx.Node], computed: Collection[fx.Node]) -> fx.Node | None:
    """Returns a source that replaces `node`, a copy that eager saves; else None.

    The source can replace the copy if all readers of the copy are computed directly after it, before the program writes
    to the source. Their other arguments must be computed already (`computed`).
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
    seen = {*joint.writable_by_caller, *forward.results}
    held = {new: place for new, place in final_values(forward.writes).items() if new not in seen}
    network = Network(joint, held)
    choices = (PolicyChoices() if save_policy is None else network.choices(save_policy)).with_eager_choices(
        joint.eager, joint.recomputed
    )
    placed = _with_sources(forward, network.cut_within(config.activation_budget, choices), held)
    saved, rest = [n for _, n in placed], [n for kind, n in placed if kind == "extra"]
    kinds = {"input": forward.inputs, "result": forward.results, "extra": rest}
    positions = {kind: {n: i for i, n in reversed([*enumerate(nodes)])} for kind, nodes in kinds.items()}
    sources = [(kind, positions[kind][held.get(n, n)]) for kind, n in placed]
    inside = saved_parts(rest, {*rest, *forward.results} - forward.overwritten)
    returned = [node for position, node in enumerate(forward.results) if position not in joint.results_in_inputs]
    backward = backward_graph(forward.graph, saved, joint.tangents, joint.gradients, forward.backward_only)
    for made_input, node in zip(backward.nodes, saved):
        made_input.meta["val"] = fake_view(inside[node]) if node in inside else made_input.meta["val"]
    dying = {*rest, *forward.results, *joint.tangents} - {*forward.inputs, *inside, *held}
    _mark_dying(backward, [*saved, *joint.tangents], dying, {*forward.results})
    return Partition(
        forward_graph(replace(forward, results=returned), rest, joint.wanted, inside),
        backward,
        saved,
        sources,
        values=[network.record(node, choices) for node in saved if not is_number(node)],
        views=[position for position, node in enumerate(rest) if node in inside],
    )


def _with_sources(forward: Forward, cut: Sequence[fx.Node], held: Collection[fx.Node]) -> list[tuple[str, fx.Node]]:
    """Returns the saved values with the kind of their source. Tensors precede numbers, which are stored separately."""
    results, lost = {*forward.results}, forward.overwritten
    cut = list(dict.fromkeys(n if n in held or n in results else _whole(n, results | lost) for n in cut))
    from_inputs = [n for n in cut if n in held or (n.op == "placeholder" and n not in lost)]
    held_or_lost = {*from_inputs, *lost}
    returned = [n for n in cut if n in results and n not in held_or_lost]
    stored = {*from_inputs, *returned}
    rest = [n for n in cut if n not in stored]
    placed = [("input", n) for n in from_inputs] + [("result", n) for n in returned] + [("extra", n) for n in rest]
    return sorted(placed, key=lambda place: is_number(place[1]))


def _whole(node: fx.Node, others: Collection[fx.Node]) -> fx.Node:
    """Returns the tensor with the same elements that `node` is a view of, if it is computed and not in `others`; else
    `node`.

    Eager has saved that tensor for higher derivatives, and the view is free. Views that depend on symbolic numbers are
    skipped.
    """
    kept = node.meta["val"]
    for view, source in itertools.pairwise(viewed(node)) if isinstance(kept, torch.Tensor) else ():
        value = source.meta["val"]
        if source.op == "placeholder" or source in others or not isinstance(value, torch.Tensor):
            break
        if len(view.all_input_nodes) > 1:
            break
        node = source if key(value.numel()) == key(kept.numel()) else node
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
    kept = {shared for node in read_by_derivatives for shared in viewed(node)}
    for node in graph.nodes:
        if node not in forward_nodes and not is_number(node):  # eager keeps sizes as numbers
            kept.update(*(viewed(source) for source in node.all_input_nodes))
    return frozenset(node for node in held if not is_number(node) and kept.isdisjoint(viewed(node)))


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

    def find_part(node: fx.Node) -> Part | None:
        """Returns `node` as a part of a present value, if the program has written the node into the value;
        else None."""
        part = saved_parts([node], env).get(node)
        return part if part is not None and all(n in env for _, args in part[1] for n in nodes_in(args)) else None

    def ensure(node: fx.Node) -> None:
        """Emits `node` and its missing dependencies."""
        pending = [node]
        while pending:
            if pending[-1] not in env and (part := find_part(pending[-1])) is not None:
                env[pending[-1]] = view_of(result, part, env, pending[-1])
            missing = [] if pending[-1] in env else [i for i in pending[-1].all_input_nodes if i not in env]
            if missing:
                pending += reversed(missing)
                continue
            ready = pending.pop()
            if ready not in env:
                assert ready.op != "placeholder", f"{ready} is needed by backward and was not saved"
                env[ready] = copy_recomputed(result, ready, env)

    wanted = ancestors(node for node in gradients if node is not None)
    for node in graph.nodes:
        if node in wanted and node in backward_only:
            ensure(node)
    for gradient in gradients:
        if gradient is not None and gradient not in env:  # the gradient may be a saved tensor
            ensure(gradient)
    result.output(tuple(None if node is None else env[node] for node in gradients))
    return result


def write_to_temporaries(graph: fx.Graph) -> None:
    """Replaces functional calls by writing operators, where every written argument is new memory that only the call
    uses."""
    for node in list(graph.nodes):
        variant = inplace_variant_of(node.target) if isinstance(node.target, OpOverload) else None
        if variant is None or not variant.own or any(position >= len(node.args) for position in variant.written):
            continue
        written = [node.args[position] for position in variant.written]
        if all(_is_temporary(value, node) for value in written):
            _rewrite(node, variant, written)


def _is_temporary(value: Any, call: fx.Node) -> bool:
    """Returns whether `value` is a tensor in separate memory that only `call` uses, once."""
    if not isinstance(value, fx.Node) or not isinstance(value.target, OpOverload) or value.target.namespace != "aten":
        return False
    memory = memory_of(value)
    new = memory is not None and all(memory_of(source) != memory for source in value.all_input_nodes)
    return new and not may_share(value) and list(value.users) == [call] and call.args.count(value) == 1


def _rewrite(node: fx.Node, variant: InplaceVariant, written: list[Any]) -> None:
    """Calls the writing variant; later results are replaced by the written arguments."""
    own = variant.own
    picked = {user: user.args[1] for user in node.users}
    values = node.meta["val"]
    node.target = variant.op
    node.meta["val"] = values[0] if own == 1 else values[:own]
    for user, position in picked.items():
        assert user.target is operator.getitem and isinstance(position, int)
        if position >= own:
            user.replace_all_uses_with(written[position - own])
        elif own == 1:
            user.replace_all_uses_with(node)
        else:
            continue
        node.graph.erase_node(user)
