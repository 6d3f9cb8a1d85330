"""Owns the choice of what forward keeps for backward, and the split of the joint graph at it.

The choice is a minimum cut: edges weigh as many bytes as keeping a value costs, what the caller holds is as good as
free, and only views, cheap pointwise operations, and dearer ones that read a kept value, may be computed a second time.
Backward computes them right where they are needed, so that they never live longer than what eager would have kept. It
does not compile anything.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.checks import unused_checks
from minidynamo.autograd.kept_parts import Part, fake_view, kept_parts, view_of
from minidynamo.autograd.locations import USERS_BACKWARD
from minidynamo.autograd.numbers import is_number
from minidynamo.autograd.recomputation import (
    Checkpoints,
    checkpoints,
    computed_again,
    is_free,
    is_random,
    operation_of,
    recomputable,
    spared,
    uses_generator,
)
from minidynamo.autograd.saving import SavePolicy, Wishes, ask, by_cost, within_budget
from minidynamo.autograd.storage_sizes import UNCHANGED, StorageSizes, give_up, grow
from minidynamo.autograd.writing_calls import write_to_temporaries
from minidynamo.autograd.written_inputs import InputWrite, WrittenInputs, holds_in_the_end, last_writes
from minidynamo.compat import OpOverload
from minidynamo.config import config
from minidynamo.numbers_in_data import hint_of
from minidynamo.redrawing import random_state
from minidynamo.saved_tensors import SavedValue
from minidynamo.unfused_memory import DIES

aten = torch.ops.aten

# Weights, in quarters of a byte. What the caller holds anyway costs next to nothing; what it may write to, unlike in
# eager, more than everything else together.
_HELD_BY_CALLER = 2
_EXPOSED = 1 << 60


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


def _all_inputs(node: fx.Node) -> Iterable[fx.Node]:
    return node.all_input_nodes


def ancestors(roots: Iterable[fx.Node], sources: Callable[[fx.Node], Iterable[fx.Node]] = _all_inputs) -> set[fx.Node]:
    """`roots` and every node they are computed from; `sources` says what one node is computed from."""
    found: set[fx.Node] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += sources(node)
    return found


def is_effect(node: fx.Node) -> bool:
    """Whether `node` must run in forward whoever uses it: it draws random numbers or checks something."""
    if node.op != "call_function":
        return False
    returns_nothing = isinstance(node.target, OpOverload) and node.meta.get("val") is None
    return uses_generator(node) or returns_nothing


def maker_of(node: fx.Node) -> fx.Node:
    """The operation that made `node`: itself, unless it is one of several results."""
    source = node.args[0] if node.target is operator.getitem else None
    several = isinstance(source, fx.Node) and not isinstance(source.meta.get("val"), torch.Tensor)
    return source if several and isinstance(source, fx.Node) else node


def forward_graph(
    graph: fx.Graph,
    inputs: list[fx.Node],
    returned: list[fx.Node],
    writes: Sequence[InputWrite],
    overwritten: Iterable[fx.Node] = (),
    kept: Collection[fx.Node] = (),
    backward: Collection[fx.Node] = (),
    parts: Mapping[fx.Node, Part] = {},
    sizes: StorageSizes = UNCHANGED,
) -> fx.Graph:
    """What `returned` and `writes` need of `graph`, plus random operations and what may raise and is not left to
    `backward`, in the same order, with `inputs` as placeholders. What is returned lies in the memory of none of
    `overwritten`. `kept` is returned behind `returned`, and what only it needs is computed as soon as possible, so that
    what it is computed from can die; those in `parts` as views of others. `sizes`: memory that inputs
    get, and that is taken from them."""
    behind = tangent_dependent(graph, set(inputs))
    effects = [node for node in graph.nodes if is_effect(node) and node not in behind]
    asked = ancestors(resize.nbytes for resize in sizes.resizes if isinstance(resize.nbytes, fx.Node))
    needed = ancestors([*returned, *(write.new for write in last_writes(writes)), *effects]) | asked
    early = ancestors(kept) - needed
    needed |= ancestors(unused_checks(graph, {*needed, *early, *behind, *backward}))
    made = fx.Graph()
    env: dict[fx.Node, fx.Node] = {node: made.node_copy(node) for node in inputs}
    results = [*returned, *kept]
    whole = [node for node in results if node not in parts]
    written = WrittenInputs(made, env, writes, {*overwritten, *sizes.emptied}, needed | early, {*whole})

    def emit(node: fx.Node) -> None:
        pending = [node]
        while pending:
            ready = pending.pop()
            env[ready] = made.node_copy(ready, env.__getitem__)
            written.note(ready)
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


def tangent_dependent(graph: fx.Graph, inputs: set[fx.Node]) -> set[fx.Node]:
    """Placeholders that are not among `inputs`, what is computed from them, and what the user's backward draws."""
    behind: set[fx.Node] = set()
    for node in graph.nodes:
        late = node not in inputs if node.op == "placeholder" else any(i in behind for i in node.all_input_nodes)
        if late or (USERS_BACKWARD in node.meta and is_random(node)):
            behind.add(node)
    return behind


def partition(
    graph: fx.Graph,
    inputs: list[fx.Node],
    tangents: list[fx.Node],
    results: list[fx.Node],
    writes: Sequence[InputWrite],
    gradients: list[fx.Node | None],
    overwritten: set[fx.Node],
    save_policy: SavePolicy | None = None,
    exposed: Collection[fx.Node] = (),
    also: Collection[fx.Node] = (),
    in_inputs: Collection[int | None] = (),
    eager: frozenset[fx.Node] = frozenset(),
    sizes: StorageSizes = UNCHANGED,
) -> Partition:
    """Split a functional joint graph.

    `inputs` are forward's placeholders, `results` what it returns to the runtime, `gradients` what backward returns.
    `overwritten` are inputs whose memory holds other data by the time backward runs: keeping them means a copy. What
    `writes` give them in the end lies there, as good as free. `exposed` are inputs, results and new data of inputs that
    the caller may write to before backward runs. `save_policy` has a say in what is kept, and so has
    `config.activation_budget`. `also` are values that backward must be able to compute although it may not read them:
    derivatives of its results do. The results at `in_inputs` lie in inputs that `writes` give them to: forward does not
    return those. What backward needs of `eager`, which eager keeps, is kept, whatever else could be. Inputs that have
    no memory in the end (`sizes`) are none of `overwritten`.
    """
    behind = tangent_dependent(graph, set(inputs))
    wanted = ancestors(node for node in gradients if node is not None)
    forward_roots = [
        *results,
        *(write.new for write in last_writes(writes)),
        *(n for n in graph.nodes if is_effect(n) and n not in behind),
    ]
    required = ancestors(forward_roots)
    held = {new: place for new, place in holds_in_the_end(writes).items() if new not in {*exposed, *results}}
    network = _Network(
        graph,
        wanted | ancestors(also),
        behind,
        required,
        overwritten,
        {*results, *held},
        {g for g in gradients if g is not None},
        frozenset(exposed).intersection([*inputs, *results]) - overwritten,
        also,
        checkpoints(graph, {*forward_roots}),
        sizes,
    )
    wishes = (Wishes() if save_policy is None else network.wishes(save_policy)).kept_as(eager)
    placed = _placed(network.cut_within(config.activation_budget, wishes), held, results, overwritten)
    saved, rest = [n for _, n in placed], [n for kind, n in placed if kind == "extra"]
    places = {"input": inputs, "result": results, "extra": rest}
    sources = [(kind, places[kind].index(held.get(n, n))) for kind, n in placed]
    inside = kept_parts(rest, {*rest, *results} - overwritten)
    views = [position for position, node in enumerate(rest) if node in inside]
    made = Partition(fx.Graph(), fx.Graph(), saved, sources, views=views)
    others = [node for position, node in enumerate(results) if position not in in_inputs]
    made.forward = forward_graph(graph, inputs, others, writes, overwritten, rest, wanted, inside, sizes)
    made.backward = backward_graph(graph, saved, tangents, gradients, behind)
    for made_input, node in zip(made.backward.nodes, saved):
        made_input.meta["val"] = fake_view(inside[node]) if node in inside else made_input.meta["val"]
    _mark_dying(made.backward, [*saved, *tangents], {*rest, *results, *tangents} - {*inputs, *inside, *held})
    tensors = [node for node in saved if not is_number(node)]
    made.values = [_record(n, n in required, n in overwritten, n in network.recomputable, wishes) for n in tensors]
    return made


def _placed(
    cut: list[fx.Node], held: Collection[fx.Node], results: Collection[fx.Node], overwritten: set[fx.Node]
) -> list[tuple[str, fx.Node]]:
    """What is kept, with the kind of place it comes from. Tensors come first: numbers are kept apart from them."""
    given = [n for n in cut if n in held or (n.op == "placeholder" and n not in overwritten)]
    returned = [n for n in cut if n in results and n not in {*given, *overwritten}]
    rest = [n for n in cut if n not in {*given, *returned}]
    placed = [("input", n) for n in given] + [("result", n) for n in returned] + [("extra", n) for n in rest]
    return sorted(placed, key=lambda place: is_number(place[1]))


def _mark_dying(backward: fx.Graph, given: Sequence[fx.Node], dying: Collection[fx.Node]) -> None:
    """Note which inputs of the backward graph, given in order, die in it: results are taken to be gone by then."""
    for node, value in zip(backward.nodes, given):
        if value in dying:
            node.meta[DIES] = True


def exposed(
    graph: fx.Graph, made_forward: Collection[fx.Node], held: Iterable[fx.Node], also: Iterable[fx.Node] = ()
) -> frozenset[fx.Node]:
    """Those of `held`, inputs and results, that eager would not keep for backward: a caller may write to them.

    Eager keeps what the gradients' formulas read of forward, and `also`. `made_forward` are the nodes that were there
    before the first gradient was computed.
    """
    kept = {shared for node in also for shared in _viewed(node)}
    for node in graph.nodes:
        if node not in made_forward and not is_number(node):  # eager keeps sizes as numbers
            kept.update(*(_viewed(source) for source in node.all_input_nodes))
    return frozenset(node for node in held if not is_number(node) and kept.isdisjoint(_viewed(node)))


def _viewed(node: fx.Node) -> list[fx.Node]:
    """`node` and all that it is a view of: they share their memory, and the count of writes to it."""
    found = [node]
    while is_free(found[-1]) and found[-1].all_input_nodes:  # a constant is a view of nothing
        found.append(found[-1].all_input_nodes[0])
    several = found[-1].op != "placeholder" and isinstance(found[-1].meta["val"], (tuple, list))
    return found[:-1] if several else found


class _Network:
    """The flow network of what backward needs and does not itself depend on gradients."""

    def __init__(
        self,
        graph: fx.Graph,
        wanted: set[fx.Node],
        behind: set[fx.Node],
        required: set[fx.Node],
        overwritten: set[fx.Node],
        results: set[fx.Node],
        gradients: set[fx.Node],
        exposed: frozenset[fx.Node],
        also: Collection[fx.Node],
        checkpoints: Checkpoints,
        sizes: StorageSizes,
    ) -> None:
        self.exposed = exposed
        self.also = also
        self.checkpoints = checkpoints
        self.late = sizes.late
        self.once = sizes.early - checkpoints.inside
        self.recomputable = recomputable(graph) - checkpoints.ends - sizes.early | checkpoints.inside
        self.candidates = [node for node in graph.nodes if node in wanted and node not in behind]
        self.behind = behind & wanted
        self.required = required
        self.overwritten = overwritten
        self.results = results
        self.gradients = gradients

    def wishes(self, policy: SavePolicy) -> Wishes:
        """What the user's policy says of each tensor that could be kept, views apart."""
        tensors = [n for n in self.candidates if n.op != "placeholder" and self.weight(n)]
        tensors = [n for n in tensors if n.target is not random_state]
        tensors = [n for n in tensors if not is_free(n) or maker_of(n) is not n]
        fixed = {node for node in tensors if is_effect(maker_of(node))}
        return ask(policy, tensors, lambda n: _record(n, n in self.required, False, n in self.recomputable), fixed)

    def cut_within(self, budget: float, wishes: Wishes) -> list[fx.Node]:
        """The values to keep, in graph order: the minimum cut under the wishes and the budget of the user."""
        again = {one for node in wishes.again for one in (node, maker_of(node))}
        usual = (self.recomputable | again) - wishes.keep - self.once

        def cut(again: frozenset[fx.Node]) -> tuple[int, list[fx.Node]]:
            self.recomputable = usual | again
            kept = self.minimum_cut(wishes)
            return sum(self.weight(node) or 0 for node in kept), kept

        _, found = cut(frozenset())
        sinks = filter(self.is_sink, self.candidates)
        dropped = spared(found, sinks, lambda n: self.may_drop(n, wishes), self.checkpoints.ends | self.once)
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

    def is_sink(self, node: fx.Node) -> bool:
        """Whether backward reads `node`, or returns it, or its derivatives do."""
        return node in self.gradients or node in self.also or any(user in self.behind for user in node.users)

    def may_drop(self, node: fx.Node, wishes: Wishes) -> bool:
        """Whether anything is won by not keeping `node`."""
        return node not in wishes.keep and node not in self.results and (self.weight(node) or 0) > _HELD_BY_CALLER

    def minimum_cut(self, wishes: Wishes) -> list[fx.Node]:
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

        Inputs and results are as good as free, since the caller holds them; but exposed ones are kept only when nothing
        else will do. A result comes before the input that it is computed from: a caller may write to the input
        (`h += f(h)`). Of everything else bytes decide; among equals, first come what forward computes anyway and the
        copies that autograd makes of what is written, which second derivatives take, too.
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
            return _HELD_BY_CALLER - 1
        first = node in self.required or node.target is torch.ops.aten.clone.default
        return 4 * bytes_of(value) + (0 if first else 1)


def bytes_of(value: torch.Tensor) -> int:
    """The bytes that keeping a tensor costs."""
    if value.layout is torch.strided:
        return hint_of(value.untyped_storage().nbytes())
    return hint_of(value.numel()) * value.element_size()


def backward_graph(
    graph: fx.Graph,
    saved: list[fx.Node],
    tangents: list[fx.Node],
    gradients: list[fx.Node | None],
    behind: set[fx.Node],
) -> fx.Graph:
    """What computes `gradients`: what is in `behind`, which tangents go into, in the order of `graph`, and all else as
    late as possible."""
    made = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in (*saved, *tangents):
        env[node] = made.placeholder(node.name)
        env[node].meta.update(node.meta)

    def ensure(node: fx.Node) -> None:
        """Emit `node` and what it needs that is not there yet, in the order of need."""
        pending = [node]
        while pending:
            missing = [i for i in pending[-1].all_input_nodes if i not in env]
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


def _record(
    node: fx.Node, required: bool, overwritten: bool, is_recomputable: bool, wishes: Wishes | None = None
) -> SavedValue:
    value = node.meta["val"]
    op = "input" if node.op == "placeholder" else operation_of(maker_of(node))
    if wishes is not None and node in wishes.eager:
        reason = "eager keeps it, and hooks for saved tensors shall see what they see there"
    elif wishes is not None and node in wishes.keep:
        reason = "save_policy= says so"
    elif overwritten:
        reason = "an input that forward overwrites; this is a copy of what it held"
    elif node.op == "placeholder":
        reason = "an input, which its owner keeps anyway"
    elif node.target is random_state:
        reason = "random numbers of a checkpoint are drawn again from it"
    elif is_random(node):
        reason = "random numbers do not come out the same a second time"
    elif not required:
        reason = "only backward needs it, and it is smaller than what it is computed from"
    elif is_recomputable:
        reason = "keeping it costs fewer bytes than keeping what it is computed from"
    else:
        reason = "too expensive to compute a second time"
    shape = tuple(value.shape)
    return SavedValue(node.name, shape, value.dtype, bytes_of(value), op, node.meta.get("user_location"), reason)
