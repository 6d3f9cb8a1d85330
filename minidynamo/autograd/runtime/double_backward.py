"""Owns derivatives of derivatives: the backward of a compiled graph for callers who differentiate it again.

A compiled backward is code that autograd does not see into. With `create_graph=True` its gradients get a gradient
function of their own, which runs the graph of the next order (`derivatives.py`), and so on. What those graphs take
beyond what is saved anyway is chosen and kept here; the plain backward is in `graph_call.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.functional.functional_graph import FunctionalGraph
from minidynamo.autograd.functional.joint_graph import ancestors, maker_of
from minidynamo.autograd.functional.shape_only_reads import read_inputs
from minidynamo.autograd.functional.value_keys import symbol_values, symbols_of, value_keys
from minidynamo.autograd.graph.batched_grads import has_batches, one_by_one
from minidynamo.autograd.graph.hooks import spare_leaves
from minidynamo.autograd.graph.numbers import is_number
from minidynamo.autograd.graph.recomputation import is_free, is_random, uses_generator
from minidynamo.autograd.partition.partition import Partition
from minidynamo.autograd.runtime.derivatives import Derivative, Derivatives, NotAvailable, Values, random_state
from minidynamo.autograd.runtime.input_nodes import Apart, Links, Ways
from minidynamo.autograd.runtime.partial_backward import KeptFor
from minidynamo.autograd.trace.joint import Given, Trace
from minidynamo.core.references import Reference
from minidynamo.errors import Diagnostic, Unsupported
from minidynamo.graph import rng_replay
from minidynamo.graph.unbacked_symints import depends_on_data


@dataclass(frozen=True)
class HigherOrder:
    """What derivatives of a compiled graph's gradients are computed from. Inputs are numbered as in the flat list.

    `saved` are names of the tensors that backward saves (see `autograd/functional/value_keys.py`), `held` inputs that
    are kept beside them. Where something is kept for some results alone, `held_for` has, for each of these, the results
    that it is kept for, by their places among the differentiable ones. `linked` are the inputs with derivatives.
    `random` are devices whose random numbers are drawn again. `missing` are inputs that would be needed and cannot be
    kept, each with the reason. `strays`: a function of the user's has kept what lies on no way from the results.
    """

    saved: tuple[str, ...] = ()
    held: tuple[int, ...] = ()
    linked: tuple[int, ...] = ()
    random: tuple[str, ...] = ()
    missing: tuple[tuple[int, str], ...] = ()
    strays: bool = False
    held_for: tuple[tuple[int, ...], ...] = ()


def plan_higher_order(
    trace: Trace,
    functional: FunctionalGraph,
    parts: Partition,
    gradients: Iterable[fx.Node | None],
    written: Iterable[int],
    given_up: Iterable[int],
) -> HigherOrder:
    """What to keep for derivatives of any order, given how the graph of `trace` was split.

    Formulas of higher derivatives use what backward read of forward, and what the operations that made this had saved,
    which backward read as well, since gradients flow through them. So it suffices that all that backward read can be
    computed again, by operations that forward ran: what backward computed, a cosine, say, is of no use for its own
    derivative, unless it has none. Inputs that this takes are held. There are two exceptions, `read_again` and
    `_strays`. What turns out to be missing nevertheless is missed by its name: the derivative is refused.
    """
    roots = [node for node in gradients if node is not None]
    usable = _usable(functional, parts)

    def reaching(nodes: Iterable[fx.Node]) -> set[fx.Node]:
        return ancestors(nodes, lambda node: () if node in usable else read_inputs(node))

    reached = reaching([*roots, *read_again(trace, functional)])
    strays = _strays(functional, reached, trace)
    if strays:
        reached |= ancestors([*roots, *strays], read_inputs)
    again = {node for node in reached if is_random(node) and node not in usable}
    if again:
        drawn = [*filter(uses_generator, functional.emitter.graph.nodes)]
        reached |= reaching(source for node in drawn for source in (node, *read_inputs(node)))
    needed = [i for i in trace.primals if functional.placeholders[i] in reached - usable]
    lost = dict.fromkeys(given_up, "It depends on {}, which was given up with its list.")
    lost |= dict.fromkeys(written, "It depends on what {} held, and the program writes to it.")
    names = value_keys(functional, symbols_of(node.meta["val"] for node in functional.placeholders))
    return HigherOrder(
        tuple(names[node] for node in parts.saved if not is_number(node)),
        tuple(i for i in needed if i not in lost),
        tuple(i for i, node in trace.gradients.items() if node is not None or strays),
        tuple(sorted({device for node in again for device in _devices(node)})),
        tuple((i, lost[i].format(functional.placeholders[i])) for i in needed if i in lost),
        bool(strays),
    )


def _usable(functional: FunctionalGraph, parts: Partition) -> set[fx.Node]:
    """What is saved and can be differentiated further. Numbers are kept for the first order alone."""
    usable = {node for node in parts.saved if node in functional.made_forward or not _is_differentiable(node)}
    return usable - {node for node in usable if depends_on_data(node.meta["val"])}


def held_for(
    higher: HigherOrder, trace: Trace, functional: FunctionalGraph, parts: Partition, kept_for: KeptFor
) -> tuple[tuple[int, ...], ...]:
    """For each input that is held the results that it is held for: those for which a saved value is kept that is
    computed from it again; all of them where it may be needed otherwise."""
    usable, everyone = _usable(functional, parts), frozenset(range(len(trace.used_up)))
    values = [node for node in parts.saved if not is_number(node)]
    ways: list[tuple[fx.Node, Collection[int]]] = [(node, places or everyone) for node, places in zip(values, kept_for)]
    ways += [(node, everyone) for node in read_again(trace, functional)]
    found: dict[fx.Node, frozenset[int]] = {}
    for value, places in ways:
        for node in ancestors([value], lambda node: () if node in usable else read_inputs(node)):
            found[node] = found.get(node, frozenset()).union(places)
    inputs = [functional.placeholders[i] for i in higher.held]
    return tuple(tuple(sorted(everyone if higher.random else found.get(node, everyone))) for node in inputs)


def _is_differentiable(node: fx.Node) -> bool:
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def read_again(trace: Trace, functional: FunctionalGraph) -> set[fx.Node]:
    """What eager keeps for operations whose higher derivatives read more than backward: with the grad mode on torch
    differentiates decompositions by formulas that read their other results, or the matrix."""
    return {functional.read(functional.values[node]) for node in trace.kept}


def _strays(functional: FunctionalGraph, reached: set[fx.Node], trace: Trace) -> list[fx.Node]:
    """What backward reads of forward, depends on inputs that require grad, and lies on no way to what is
    differentiated: a function of the user's has saved it. Its own derivative takes what backward never read."""
    behind = [node for node in reached if node not in functional.made_forward and not is_number(node)]
    read = {source for node in behind for source in read_inputs(node) if source in functional.made_forward}
    nodes = [*trace.mutated_with_grad.values(), *(family.node for family in trace.families if family.requires_grad)]
    roots = [functional.read(functional.values[node]) for node in nodes if node is not None]
    on_the_way = {maker_of(node) for node in ancestors(roots)}
    sources = {functional.placeholders[i] for i, requires_grad in trace.requires_grad.items() if requires_grad}
    return [
        node
        for node in sorted(read - sources, key=lambda node: node.name)
        if _is_differentiable(node)
        and maker_of(_copied(node)) not in on_the_way
        and not sources.isdisjoint(ancestors([node], read_inputs))
    ]


def _copied(node: fx.Node) -> fx.Node:
    """What `node` is a copy or a view of: autograd copies what is about to be written."""
    while node.target is torch.ops.aten.clone.default or (is_free(node) and maker_of(node) is node):
        node = node.all_input_nodes[0]
    return node


def _devices(node: fx.Node) -> set[str]:
    """Where the tensors lie that a random operation makes; where the generator lies whose state is read."""
    if node.target is rng_replay.random_state:
        return {torch.device(node.args[0]).type}  # type: ignore[arg-type]
    value = node.meta["val"]
    made = value if isinstance(value, (tuple, list)) else [value]
    return {tensor.device.type for tensor in made if isinstance(tensor, torch.Tensor)}


Held: TypeAlias = tuple[torch.Tensor, int | None]


class Box(list[Held]):
    """An input that is held, until it is let go; for weak references."""


@dataclass
class Kept:
    """What one call keeps. `held` are inputs with their versions, those that lie `apart` in boxes of the nodes of
    results. `links` stand for the inputs with derivatives: the same history without data."""

    held: dict[int, Held]
    links: list[torch.Tensor | None]
    numbers: dict[Any, Any]
    random: dict[str, torch.Tensor]
    missing: dict[int, str]
    apart: dict[int, Reference] = field(default_factory=dict)

    def set_apart(self, numbers: Collection[int]) -> dict[int, Box]:
        """Those of the inputs with these numbers that are held, in boxes, which are for somebody else to keep."""
        boxes = {i: Box([self.held.pop(i)]) for i in numbers if i in self.held}
        self.apart = {i: Reference(box) for i, box in boxes.items()}
        return boxes

    def taken(self) -> Kept:
        """The same, with all that is still there."""
        if not self.apart:
            return self
        boxes = {i: reference() for i, reference in self.apart.items()}
        return replace(self, held={**self.held, **{i: box[0] for i, box in boxes.items() if box}})

    def clear(self) -> None:
        """Let go of what lies apart."""
        for reference in self.apart.values():
            box = reference()
            if box is not None:
                box.clear()


class DoubleBackward:
    """Gradients that can be differentiated, as `plan` says. `wanted` are the inputs whose gradients are asked for."""

    def __init__(self, plan: HigherOrder, derivatives: Derivatives, wanted: Sequence[int]) -> None:
        self.plan = plan
        self.derivatives = derivatives
        self.linked = [i in plan.linked for i in wanted]

    def keep(self, args: Sequence[Any], links: Sequence[torch.Tensor | None], hooked: bool) -> Kept:
        """What is needed of the inputs of a call that begins, `links` to those that require grad among it. The user's
        hooks for saved tensors leave no input to hold: what is kept has to go through them."""
        plan, missing = self.plan, dict(self.plan.missing)
        if hooked:
            missing.update(dict.fromkeys(plan.held, "Hooks for saved tensors were in force."))
        return Kept(
            {} if hooked else {i: _hold(args[i]) for i in plan.held},
            [link if is_linked else None for link, is_linked in zip(links, self.linked)],
            symbol_values(self.derivatives.symbols, args) if self.derivatives.symbols else {},
            {device: random_state(device) for device in plan.random},
            missing,
        )

    def let_go(self, kept: Kept, gone: frozenset[int]) -> Kept:
        """What is left of `kept` when backward has freed what the results `gone` alone need."""
        needed = [i for i, places in zip(self.plan.held, self.plan.held_for) if not gone.issuperset(places)]
        return replace(kept, held={i: kept.held[i] for i in needed if i in kept.held})

    def gradients(
        self,
        kept: Kept,
        saved: Sequence[torch.Tensor | None],
        tangents: Sequence[torch.Tensor | None],
        compiled: Compiled,
        watch: Watch | None,
    ) -> Sequence[torch.Tensor | None]:
        """The gradients of the inputs, which can be differentiated if the grad mode is on. `compiled` computes them.
        Gradients of theirs do not arrive at results of the graph: `watch` knows who would see them there."""
        values = [None if value is None else value.detach() for value in saved]
        return _gradients(_Call(self, kept, values, compiled=compiled, watch=watch), tangents)


Compiled = Callable[[Sequence[torch.Tensor | None]], Sequence[torch.Tensor | None]]


class Watch(Protocol):
    """The results of a call that somebody may watch, by their places."""

    def alive(self, places: Iterable[int]) -> list[tuple[int, torch.Tensor]]:
        """Those of the results at `places` that are still there, each with its place."""

    def refuse(self, places: Iterable[int]) -> None:
        """Raise Unsupported if somebody watches what arrives at one of them in the backward that is running."""


@dataclass
class _Call:
    """What is known of a call when gradients of the next order are asked for: gradients of earlier orders, and whether
    they were differentiable themselves."""

    again: DoubleBackward
    kept: Kept
    saved: Sequence[torch.Tensor | None]
    earlier: tuple[tuple[torch.Tensor | None, ...], ...] = ()
    orders: tuple[Given, ...] = ()
    compiled: Compiled | None = None
    watch: Watch | None = None

    def derivative(self) -> Derivative:
        """The derivative of the highest order; raises NotAvailable."""
        return self.again.derivatives.of(self.orders, self.kept.numbers)

    def differentiable(self, inputs: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The gradients, behind which autograd comes to those of `inputs` that it comes to in eager, since it runs what
        is behind all that it is told of, functions of the user's as well; and to the results of the graph that are
        still there and that gradients of these arrive at, so that it comes here when it is asked for what does."""
        try:
            derivative = self.derivative()
        except NotAvailable:
            return list(_differentiable(self, (None, inputs), *inputs))
        leads_to, results = derivative.leads_to, derivative.differentiable
        known = [value if leads_to.get(place) else None for place, value in enumerate(inputs)]
        places = [leads_to.get(place, ()) for place in range(len(inputs))]
        for place, value in () if self.watch is None else self.watch.alive(frozenset().union(*derivative.reached)):
            known.append(value)
            places.append(tuple(k for k, found in enumerate(derivative.reached) if place in found))
        everywhere = {k for positions in places for k in positions}
        ways = Ways(places, len(everywhere), len(results), _differentiable, _derivatives_of)
        return list(ways.call(self, known) if ways.groups else _differentiable(self, (None, known), *known))

    def then(self, tangents: Sequence[torch.Tensor | None]) -> _Call:
        """The same with gradients of one more order."""
        differentiable = torch.is_grad_enabled()
        given = tuple(None if tangent is None else differentiable and tangent.requires_grad for tangent in tangents)
        return replace(self, earlier=(*self.earlier, tuple(tangents)), orders=(*self.orders, given))

    def compute(self) -> Sequence[torch.Tensor | None]:
        """The gradients of the highest order: by the inputs, then by each that was handed in for an earlier order, None
        by those that are not differentiable. Raises Unsupported MD403 where that cannot be done."""
        if self.compiled is not None:
            return self.compiled(self.earlier[0])
        kept = self.kept
        values = Values(self.saved, self.input, kept.numbers, self.earlier, kept.random)
        try:
            return self.derivative().program.run(values)
        except NotAvailable as error:
            raise _unsupported(str(error)) from error

    def input(self, number: int) -> torch.Tensor:
        """An input that is held."""
        if number not in self.kept.held:
            raise NotAvailable(self.kept.missing.get(number, "It depends on an input that was not kept."))
        value, version = self.kept.held[number]
        if compat.version_of(value) != version:
            raise NotAvailable("An input was written to since.")
        return value


def _gradients(call: _Call, tangents: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """The gradients of the order that `tangents` are handed in for."""
    if has_batches(tangents):
        return one_by_one(lambda row: _gradients(call, row), tangents)
    call = call.then(tangents)
    if not torch.is_grad_enabled():
        return list(call.compute())
    given = [tangent for tangents in call.earlier for tangent in tangents]
    return call.differentiable([*call.kept.links, *given])


class _Differentiable(torch.autograd.Function):
    """Gradients of some order, which can be differentiated: those of the next order are its backward."""

    @staticmethod
    def forward(
        ctx: Any, call: _Call, known: tuple[Apart | None, Links], *_: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        made = [None if value is None else value.detach() for value in call.compute()]
        ctx.refusal = ""
        try:
            derivative = call.derivative()
        except NotAvailable as error:
            ctx.refusal = str(error)
        else:
            ctx.reached = derivative.reached
            found = zip(made, derivative.differentiable)
            ctx.mark_non_differentiable(*[value for value, again in found if value is not None and not again])
        ctx.save_for_backward(*call.saved, *(t for tangents in call.earlier for t in tangents))
        ctx.call = replace(call, saved=(), earlier=(), compiled=None)
        ctx.count = len(call.saved)
        ctx.apart, ctx.ends = known[0], len(known[1])
        ctx.set_materialize_grads(False)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if ctx.apart is not None:
            ctx.apart.begin()
        found = _derivatives_of(ctx, tangents)
        wanted = ctx.needs_input_grad[2:]  # a derivative in one call has zeros for what it does not lead to
        if ctx.apart is not None:
            found = ctx.apart.left(found)
        found = [value if asked else None for value, asked in zip(found, wanted)]
        spare_leaves(ctx, found)
        return (None, None, *found, *[None] * (len(wanted) - len(found)))


def _derivatives_of(ctx: Any, tangents: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """The gradients of the next order, given the node of some, and what came in there; None for results of the graph,
    which `ctx.ends` counts as well."""
    if ctx.refusal:
        raise _unsupported(ctx.refusal)
    call: _Call = ctx.call
    if call is not None and call.watch is not None:
        used = (places for places, tangent in zip(ctx.reached, tangents) if tangent is not None)
        call.watch.refuse(frozenset().union(*used))
    values = ctx.saved_tensors
    if not compat.retains_graph():
        ctx.maybe_clear_saved_tensors()
        ctx.call = None
    rest = iter(values[ctx.count :])
    earlier = tuple(tuple(next(rest) for _ in given) for given in call.orders)
    found = _gradients(replace(call, saved=values[: ctx.count], earlier=earlier), tangents)
    return [*found, *[None] * (ctx.ends - len(found))]


_differentiable = compat.raw_apply(_Differentiable)


def _unsupported(why: str) -> Unsupported:
    return Unsupported(
        Diagnostic(
            "MD403",
            "a compiled graph cannot be differentiated twice",
            why=f"The derivative of its gradients cannot be computed from what is there. {why}",
            fix="Run the function without minidynamo there: `fn.__wrapped__(...)`.",
        )
    )


def _hold(value: torch.Tensor) -> Held:
    """`value` for later, with its version."""
    held = value.detach()
    return held, compat.version_of(held)
