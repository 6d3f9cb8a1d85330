"""Owns the split of a joint graph into forward and backward, at what `minimum_cut.py` chooses to keep.

Backward computes again what is not kept, right where it is needed, so that it never lives longer than what eager would
have kept. Nothing is compiled here.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.functional.joint_graph import Forward, Joint, ancestors
from minidynamo.autograd.functional.storage_resize import give_up, grow
from minidynamo.autograd.functional.written_inputs import WrittenInputs, holds_in_the_end
from minidynamo.autograd.graph.graph_builder import same_layout
from minidynamo.autograd.graph.numbers import is_number, key
from minidynamo.autograd.graph.recomputation import computed_again, viewed
from minidynamo.autograd.partition.minimum_cut import Network
from minidynamo.autograd.partition.saved_views import Part, fake_view, kept_parts, view_of
from minidynamo.autograd.partition.saving import PolicyChoices, SavePolicy
from minidynamo.autograd.partition.writing_calls import write_to_temporaries
from minidynamo.autograd.trace.checks import unused_checks
from minidynamo.config import config
from minidynamo.graph.pytree import nodes_in
from minidynamo.memory.graph_plan import may_share
from minidynamo.memory.saved import SavedValue
from minidynamo.memory.unfused_peak import DIES, RETURNED


@dataclass
class Partition:
    """Both graphs. Backward takes `saved` (nodes of the joint graph, numbers behind tensors), then tangents; forward
    returns its results, but for those that lie in inputs, then the nodes of `extra`. Each entry of `sources` says where
    a saved value comes from: ("input", flat index), ("result", position) or ("extra", position). `views` are those of
    `extra` that are views of others."""

    forward: fx.Graph
    backward: fx.Graph
    saved: list[fx.Node] = field(default_factory=list)
    sources: list[tuple[str, int]] = field(default_factory=list)
    values: list[SavedValue] = field(default_factory=list)
    views: list[int] = field(default_factory=list)

    @property
    def results(self) -> int:
        """How many of forward's outputs are results; those of `extra` stand behind them."""
        returned: Any = self.forward.output_node().args[0]
        return len(returned) - sum(kind == "extra" for kind, _ in self.sources)


def forward_graph(
    forward: Forward,
    kept: Collection[fx.Node] = (),
    backward: Collection[fx.Node] = (),
    parts: Mapping[fx.Node, Part] = {},
) -> fx.Graph:
    """What forward is run for, and what may raise and is not left to `backward`, in the same order.

    What is returned lies in the memory of none of the inputs that are overwritten. `kept` is returned behind the
    results, and what only it needs is computed as soon as possible, so that what it is computed from can die; those in
    `parts` as views of others.
    """
    graph, sizes = forward.graph, forward.sizes
    asked = ancestors(resize.nbytes for resize in sizes.resizes if isinstance(resize.nbytes, fx.Node))
    needed = ancestors(forward.roots) | asked
    early = ancestors(kept) - needed
    needed |= ancestors(unused_checks(graph, {*needed, *early, *forward.behind, *backward}))
    made = fx.Graph()
    env: dict[fx.Node, fx.Node] = {node: made.node_copy(node) for node in forward.inputs}
    results = [*forward.results, *kept]
    whole = [node for node in results if node not in parts]
    lost = {*forward.overwritten, *sizes.emptied}
    written = WrittenInputs(made, env, forward.writes, lost, needed | early, {*whole})

    def emit(node: fx.Node) -> None:
        pending = [node]
        while pending:
            ready = pending.pop()
            source = None if ready in results else _read_at_once(ready, early, env)
            env[ready] = made.node_copy(ready, env.__getitem__) if source is None else env[source]
            written.note(ready, source)
            unlocked = [user for user in ready.users if user in early and user not in env]
            pending += [user for user in reversed(unlocked) if all(i in env for i in user.all_input_nodes)]

    for node in graph.nodes if asked else ():
        if node in asked and node not in env:
            emit(node)
    grow(made, sizes.resizes, env)
    for node in graph.nodes:
        if (node in needed or node in early) and node not in env:
            emit(node)
        written.pass_by(node)
    found = env | dict(zip(whole, written.finish(whole)))
    give_up(made, sizes.resizes, env)
    found |= {node: view_of(made, part, found, node) for node, part in parts.items()}
    made.output(tuple(map(found.__getitem__, results)))
    write_to_temporaries(made)
    return made


def _read_at_once(node: fx.Node, early: Collection[fx.Node], made: Collection[fx.Node]) -> fx.Node | None:
    """What can be read instead of `node`, a copy that eager keeps: all that is computed of it here is what backward
    takes instead, and that comes right behind it, in front of what the program writes then, since all else that it is
    computed of is `made`."""
    if node.target is not torch.ops.aten.clone.default or node not in early:
        return None
    source, users = node.args[0], early & node.users.keys()
    if not isinstance(source, fx.Node) or not users or not same_layout(node.meta["val"], source.meta["val"]):
        return None
    ready = all(other is node or other in made for user in users for other in user.all_input_nodes)
    return source if ready and not any(map(may_share, users)) else None


def partition(joint: Joint, save_policy: SavePolicy | None = None) -> Partition:
    """Split a joint graph. `save_policy` has a say in what is kept, and so has `config.activation_budget`."""
    forward = joint.forward
    seen = {*joint.exposed, *forward.results}
    held = {new: place for new, place in holds_in_the_end(forward.writes).items() if new not in seen}
    network = Network(joint, held)
    wishes = (PolicyChoices() if save_policy is None else network.wishes(save_policy)).kept_as(joint.eager, joint.anew)
    placed = _placed(forward, network.cut_within(config.activation_budget, wishes), held)
    saved, rest = [n for _, n in placed], [n for kind, n in placed if kind == "extra"]
    places = {"input": forward.inputs, "result": forward.results, "extra": rest}
    sources = [(kind, places[kind].index(held.get(n, n))) for kind, n in placed]
    inside = kept_parts(rest, {*rest, *forward.results} - forward.overwritten)
    returned = [node for position, node in enumerate(forward.results) if position not in joint.lying]
    backward = backward_graph(forward.graph, saved, joint.tangents, joint.gradients, forward.behind)
    for made_input, node in zip(backward.nodes, saved):
        made_input.meta["val"] = fake_view(inside[node]) if node in inside else made_input.meta["val"]
    dying = {*rest, *forward.results, *joint.tangents} - {*forward.inputs, *inside, *held}
    _mark_dying(backward, [*saved, *joint.tangents], dying, forward.results)
    return Partition(
        forward_graph(replace(forward, results=returned), rest, joint.wanted, inside),
        backward,
        saved,
        sources,
        values=[network.record(node, wishes) for node in saved if not is_number(node)],
        views=[position for position, node in enumerate(rest) if node in inside],
    )


def _placed(forward: Forward, cut: Sequence[fx.Node], held: Collection[fx.Node]) -> list[tuple[str, fx.Node]]:
    """What is kept, with the kind of place it comes from. Tensors come first: numbers are kept apart from them."""
    results, lost = {*forward.results}, forward.overwritten
    cut = list(dict.fromkeys(n if n in held or n in results else _whole(n, results | lost) for n in cut))
    given = [n for n in cut if n in held or (n.op == "placeholder" and n not in lost)]
    returned = [n for n in cut if n in results and n not in {*given, *lost}]
    rest = [n for n in cut if n not in {*given, *returned}]
    placed = [("input", n) for n in given] + [("result", n) for n in returned] + [("extra", n) for n in rest]
    return sorted(placed, key=lambda place: is_number(place[1]))


def _whole(node: fx.Node, others: Collection[fx.Node]) -> fx.Node:
    """What `node` is a view of that has the same elements, if that is computed and none of `others`; else `node`. Eager
    has saved that for higher derivatives, and the view is there at once: it hangs on no numbers that vary."""
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
    backward: fx.Graph, given: Sequence[fx.Node], dying: Collection[fx.Node], returned: Collection[fx.Node]
) -> None:
    """Note which inputs of the backward graph, given in order, die in it, and which of them are `returned`: they do if
    the caller has let go of them."""
    for node, value in zip(backward.nodes, given):
        if value in dying:
            node.meta[DIES] = True
            if value in returned:
                node.meta[RETURNED] = True


def exposed(
    graph: fx.Graph, made_forward: Collection[fx.Node], held: Iterable[fx.Node], also: Iterable[fx.Node] = ()
) -> frozenset[fx.Node]:
    """Those of `held`, inputs and results, that eager would not keep for backward: a caller may write to them.

    Eager keeps what the gradients' formulas read of forward, and `also`. `made_forward` are the nodes that were there
    before the first gradient was computed.
    """
    kept = {shared for node in also for shared in viewed(node)}
    for node in graph.nodes:
        if node not in made_forward and not is_number(node):  # eager keeps sizes as numbers
            kept.update(*(viewed(source) for source in node.all_input_nodes))
    return frozenset(node for node in held if not is_number(node) and kept.isdisjoint(viewed(node)))


def backward_graph(
    graph: fx.Graph,
    saved: Sequence[fx.Node],
    tangents: Sequence[fx.Node],
    gradients: Sequence[fx.Node | None],
    behind: set[fx.Node],
) -> fx.Graph:
    """What computes `gradients`: what is in `behind`, which tangents go into, in the order of `graph`, and all else as
    late as possible."""
    made = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in (*saved, *tangents):
        env[node] = made.placeholder(node.name)
        env[node].meta.update(node.meta)

    def there(node: fx.Node) -> Part | None:
        """Where `node` is found in something that is there, which the program has written it to."""
        part = kept_parts([node], env).get(node)
        return part if part is not None and all(n in env for _, args in part[1] for n in nodes_in(args)) else None

    def ensure(node: fx.Node) -> None:
        """Emit `node` and what it needs that is not there yet, in the order of need."""
        pending = [node]
        while pending:
            if pending[-1] not in env and (part := there(pending[-1])) is not None:
                env[pending[-1]] = view_of(made, part, env, pending[-1])
            missing = [] if pending[-1] in env else [i for i in pending[-1].all_input_nodes if i not in env]
            if missing:
                pending += reversed(missing)
                continue
            ready = pending.pop()
            if ready not in env:
                assert ready.op != "placeholder", f"{ready} is needed by backward and was not saved"
                env[ready] = computed_again(made, ready, env)

    wanted = ancestors(node for node in gradients if node is not None)
    for node in graph.nodes:
        if node in wanted and node in behind:
            ensure(node)
    for gradient in gradients:
        if gradient is not None and gradient not in env:  # it may be what was saved
            ensure(gradient)
    made.output(tuple(None if node is None else env[node] for node in gradients))
    return made
