"""Owns derivatives of derivatives: the backward of a compiled graph for callers differentiating the gradients.

Autograd cannot see into a compiled backward. With `create_graph=True` the gradients get a separate autograd node; the
backward of the node runs the graph of the next order (`derivatives.py`), and so on. This module chooses and keeps the
values needed in addition to the saved tensors; the first-order backward is in `graph_node.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, TypeAlias

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.functional.functional_graph import FunctionalGraph
from minidynamo.autograd.functional.joint_graph import ancestors, producer_of
from minidynamo.autograd.functional.shape_only_reads import read_inputs
from minidynamo.autograd.functional.value_keys import symbol_values, symbols_of, value_keys
from minidynamo.autograd.graph.hooks import skip_leaf_hooks
from minidynamo.autograd.graph.layouts import has_batches, one_by_one
from minidynamo.autograd.graph.numbers import is_number
from minidynamo.autograd.graph.recomputation import is_random, is_view_or_item, uses_generator
from minidynamo.autograd.partition.partition import Partition
from minidynamo.autograd.runtime.derivatives import Derivative, Derivatives, NotAvailable, Values, random_state
from minidynamo.autograd.runtime.input_nodes import InputNodes, LinkedInputs, opaque
from minidynamo.autograd.runtime.partial_backward import Readers
from minidynamo.autograd.runtime.result_nodes import Watch, with_separate_inputs
from minidynamo.autograd.trace.joint import TangentKinds, Trace
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic, Unsupported
from minidynamo.graph import rng_replay
from minidynamo.graph.pytree import as_sequence
from minidynamo.graph.unbacked_symints import depends_on_data


@record(frozen=True)
class HigherOrderPlan:
    """Values from which derivatives of a compiled graph's gradients are computed. Inputs are numbered as in the flat
    list."""

    #: Names of the saved tensors, in their order (see `autograd/functional/value_keys.py`).
    saved: tuple[str, ...] = ()
    #: Number of an input kept in addition -> indices of the differentiable results that need the input; () if saved
    #: tensors are not kept per result.
    held: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    #: Numbers of inputs with derivatives.
    linked: tuple[int, ...] = ()
    #: Device types with random numbers to draw again.
    random: tuple[str, ...] = ()
    #: Pairs (number of a needed input that cannot be kept, reason).
    missing: tuple[tuple[int, str], ...] = ()
    #: Whether an autograd.Function of the user saves a value that no differentiated result is computed from.
    off_path_saves: bool = False


def plan_higher_order(
    trace: Trace,
    functional: FunctionalGraph,
    parts: Partition,
    gradients: Iterable[fx.Node | None],
    written: Iterable[int],
    donated_inputs: Iterable[int],
) -> HigherOrderPlan:
    """Plans what to keep for derivatives of any order, given the partition of the graph of `trace`.

    Formulas of higher derivatives read the forward values that backward reads, and the tensors that the operations
    which compute these values save. Backward reads these tensors as well, since gradients flow through the operations.
    So it is enough if operations of forward can compute each value that backward reads again. A value that backward
    computes, such as a cosine, is no substitute unless it is not differentiable: its own derivative would be missing.
    Inputs that the recomputation needs are held. `extra_reads` and `_off_path_saves` are the two exceptions. If a value
    is missing nevertheless, the lookup by name fails, and the derivative is refused.
    """
    roots = [node for node in gradients if node is not None]
    usable = _usable(functional, parts)

    def reaching(nodes: Iterable[fx.Node]) -> set[fx.Node]:
        return ancestors(nodes, lambda node: () if node in usable else read_inputs(node))

    reached = reaching([*roots, *extra_reads(trace, functional)])
    off_path_saves = _off_path_saves(functional, reached, trace)
    if off_path_saves:
        reached |= ancestors([*roots, *off_path_saves], read_inputs)
    drawn_again = {node for node in reached if is_random(node) and node not in usable}
    if drawn_again:
        generator_nodes = [*filter(uses_generator, functional.emitter.graph.nodes)]
        reached |= reaching(source for node in generator_nodes for source in (node, *read_inputs(node)))
    needed = [i for i in trace.primals if functional.placeholders[i] in reached - usable]
    lost = dict.fromkeys(donated_inputs, "It depends on {}, which was donated with its list.")
    lost |= dict.fromkeys(written, "It depends on the old data of {}, and the program writes to it.")
    names = value_keys(functional, symbols_of(node.meta["val"] for node in functional.placeholders))
    return HigherOrderPlan(
        tuple(names[node] for node in parts.saved if not is_number(node)),
        {i: () for i in needed if i not in lost},
        tuple(i for i, node in trace.gradients.items() if node is not None or off_path_saves),
        tuple(sorted({device for node in drawn_again for device in _devices(node)})),
        tuple((i, lost[i].format(functional.placeholders[i])) for i in needed if i in lost),
        bool(off_path_saves),
    )


def _usable(functional: FunctionalGraph, parts: Partition) -> set[fx.Node]:
    """Returns the saved values that can be differentiated further. Numbers are saved for the first order only."""
    usable = {node for node in parts.saved if node in functional.forward_nodes or not _is_differentiable(node)}
    return usable - {node for node in usable if depends_on_data(node.meta["val"])}


def held_per_result(
    higher: HigherOrderPlan, trace: Trace, functional: FunctionalGraph, parts: Partition, readers: Readers
) -> HigherOrderPlan:
    """Adds to each held input the results that need the input: results for which a saved value is recomputed from the
    input; all results if the input may be needed for another reason."""
    usable, all_results = _usable(functional, parts), frozenset(range(len(trace.node_graph.targets)))
    values = [node for node in parts.saved if not is_number(node)]
    reads: list[tuple[fx.Node, Collection[int]]] = [
        (node, indices or all_results) for node, indices in zip(values, readers)
    ]
    reads += [(node, all_results) for node in extra_reads(trace, functional)]
    held: dict[fx.Node, frozenset[int]] = {}
    for value, indices in reads:
        for node in ancestors([value], lambda node: () if node in usable else read_inputs(node)):
            held[node] = held.get(node, frozenset()).union(indices)
    needing = {i: held.get(functional.placeholders[i], all_results) for i in higher.held}
    if higher.random:
        needing = dict.fromkeys(higher.held, all_results)
    return replace(higher, held={i: tuple(sorted(results)) for i, results in needing.items()})


def _is_differentiable(node: fx.Node) -> bool:
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def extra_reads(trace: Trace, functional: FunctionalGraph) -> set[fx.Node]:
    """Returns values saved by eager because higher derivatives read more than backward. With the grad mode on, torch
    differentiates decompositions by formulas that read additional results, or the matrix."""
    return {functional.read(functional.values[node]) for node in trace.saved_for_derivatives}


def _off_path_saves(functional: FunctionalGraph, reached: set[fx.Node], trace: Trace) -> list[fx.Node]:
    """Returns forward values that backward reads and that depend on inputs with grad, but that no differentiated value
    is computed from: an autograd.Function of the user saved them. Their derivatives read values that backward never
    read."""
    backward_nodes = [node for node in reached if node not in functional.forward_nodes and not is_number(node)]
    read = {source for node in backward_nodes for source in read_inputs(node) if source in functional.forward_nodes}
    differentiated = [
        *trace.mutated_with_grad.values(),
        *(alias_set.node for alias_set in trace.alias_sets if alias_set.requires_grad),
    ]
    roots = [functional.read(functional.values[node]) for node in differentiated if node is not None]
    on_path = {producer_of(node) for node in ancestors(roots)}
    sources = {functional.placeholders[i] for i, requires_grad in trace.requires_grad.items() if requires_grad}
    return [
        node
        for node in sorted(read - sources, key=lambda node: node.name)
        if _is_differentiable(node)
        and producer_of(_copied(node)) not in on_path
        and not sources.isdisjoint(ancestors([node], read_inputs))
    ]


def _copied(node: fx.Node) -> fx.Node:
    """Returns the original of a copy or a view: autograd copies a tensor before a write."""
    while node.target is torch.ops.aten.clone.default or (is_view_or_item(node) and producer_of(node) is node):
        node = node.all_input_nodes[0]
    return node


def _devices(node: fx.Node) -> set[str]:
    """Returns the devices of the results of a random operation, or the device of the generator."""
    if node.target is rng_replay.random_state:
        return {torch.device(node.args[0]).type}  # type: ignore[arg-type]
    return {tensor.device.type for tensor in as_sequence(node.meta["val"]) if isinstance(tensor, torch.Tensor)}


HeldInput: TypeAlias = tuple[torch.Tensor, int | None]


@record
class HigherOrderState:
    """Values kept by a call for higher derivatives."""

    #: Held inputs with their versions, by number.
    held: dict[int, HeldInput]
    #: One link per input with grad; None for an input without derivatives.
    links: list[torch.Tensor | None]
    #: Values of symbols.
    numbers: dict[Any, Any]
    #: State of the generator before forward, by device type.
    random: dict[str, torch.Tensor]
    #: Reasons why an input is not held, by number.
    missing: dict[int, str]


class DoubleBackward:
    """Computes differentiable gradients, with the values kept according to `plan`. `wanted` has the number of the input
    per gradient of backward."""

    def __init__(self, plan: HigherOrderPlan, derivatives: Derivatives, wanted: Sequence[int]) -> None:
        self.plan = plan
        self.derivatives = derivatives
        #: Per input of `wanted`: whether the input has derivatives.
        self.linked = [i in plan.linked for i in wanted]

    def keep(self, args: Sequence[Any], links: Sequence[torch.Tensor | None], hooked: bool) -> HigherOrderState:
        """Returns the values to keep at the start of a call; `links` are the links to inputs with grad. With hooks for
        saved tensors (`hooked`) no input is held, since every kept tensor would have to pass through the hooks."""
        plan, missing = self.plan, dict(self.plan.missing)
        if hooked:
            missing.update(dict.fromkeys(plan.held, "Hooks for saved tensors were in force."))
        return HigherOrderState(
            {} if hooked else {i: with_version(args[i]) for i in plan.held},
            [link if is_linked else None for link, is_linked in zip(links, self.linked)],
            symbol_values(self.derivatives.symbols, args) if self.derivatives.symbols else {},
            {device: random_state(device) for device in plan.random},
            missing,
        )

    def gradients(
        self,
        kept: HigherOrderState,
        saved: Sequence[torch.Tensor | None],
        tangents: Sequence[torch.Tensor | None],
        compiled: Compiled,
        watch: Watch | None,
    ) -> Sequence[torch.Tensor | None]:
        """Returns the gradients of the inputs, differentiable if the grad mode is on, computed by `compiled`. Gradients
        of gradients do not flow to results of the graph: `watch` raises if a result is watched."""
        values = [None if value is None else value.detach() for value in saved]
        return _gradients(_Call(self, kept, values, compiled=compiled, watch=watch), tangents)


Compiled = Callable[[Sequence[torch.Tensor | None]], Sequence[torch.Tensor | None]]


@record
class _Call:
    """State of a call when gradients of the next order are requested."""

    #: Derivatives of the graph.
    double_backward: DoubleBackward
    #: Values kept by the call.
    kept: HigherOrderState
    #: Saved tensors; None for freed tensors.
    saved: Sequence[torch.Tensor | None]
    #: Tangents of each order so far.
    earlier: tuple[tuple[torch.Tensor | None, ...], ...] = ()
    #: Per order and tangent: None without tangent, else whether the tangent was differentiable.
    orders: tuple[TangentKinds, ...] = ()
    #: Computes the gradients of the first order; None for higher orders.
    compiled: Compiled | None = None
    #: Watch of the results; None if not needed.
    watch: Watch | None = None

    def derivative(self) -> Derivative:
        """Returns the derivative of the highest order; raises NotAvailable."""
        return self.double_backward.derivatives.find(self.orders, self.kept.numbers)

    def differentiable(self, inputs: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Returns the gradients as outputs of an autograd node.

        The node has edges only to the `inputs` that eager reaches from the used gradients, since autograd runs every
        node that it reaches, functions of the user included. Further edges lead to results of the graph that are alive
        and get gradients of gradients in eager: if autograd is asked for such a gradient, the node runs, and raises.
        """
        try:
            derivative = self.derivative()
        except NotAvailable:
            return list(_differentiable(self, LinkedInputs(inputs), *inputs))
        reaching_derivatives, results = derivative.reaching_derivatives, derivative.differentiable
        known = [value if reaching_derivatives.get(index) else None for index, value in enumerate(inputs)]
        indices = [reaching_derivatives.get(index, ()) for index in range(len(inputs))]
        for index, value in (
            () if self.watch is None else self.watch.alive(frozenset().union(*derivative.reached_results))
        ):
            known.append(value)
            indices.append(tuple(k for k, found in enumerate(derivative.reached_results) if index in found))
        everywhere = {k for positions in indices for k in positions}
        input_nodes = InputNodes(indices, len(everywhere), len(results), _derivatives_of)
        linked = input_nodes.link(known) if input_nodes.separable else LinkedInputs(known)
        edges = linked.links if linked.separate is None else linked.edges
        return with_separate_inputs(_differentiable(self, linked, *edges), linked)

    def with_tangents(self, tangents: Sequence[torch.Tensor | None]) -> _Call:
        """Returns the same call with the tangents of one more order."""
        differentiable = torch.is_grad_enabled()
        kinds = tuple(None if tangent is None else differentiable and tangent.requires_grad for tangent in tangents)
        return replace(self, earlier=(*self.earlier, tuple(tangents)), orders=(*self.orders, kinds))

    def compute(self) -> Sequence[torch.Tensor | None]:
        """Returns the gradients of the highest order: for the inputs, then for each tangent of an earlier order, None
        for a non-differentiable tangent. Raises Unsupported MD403 if a value is missing."""
        if self.compiled is not None:
            return self.compiled(self.earlier[0])
        state = self.kept
        values = Values(self.saved, self.input, state.numbers, self.earlier, state.random)
        try:
            return self.derivative().program.run(values)
        except NotAvailable as error:
            raise _unsupported(str(error)) from error

    def input(self, number: int) -> torch.Tensor:
        """Returns a held input; raises NotAvailable."""
        if number not in self.kept.held:
            raise NotAvailable(self.kept.missing.get(number, "It depends on an input that was not kept."))
        value, version = self.kept.held[number]
        if compat.version_of(value) != version:
            raise NotAvailable("An input was written to since.")
        return value


def _gradients(call: _Call, tangents: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Returns the gradients of the order that `tangents` belong to."""
    if has_batches(tangents):
        return one_by_one(lambda row: _gradients(call, row), tangents)
    call = call.with_tangents(tangents)
    if not torch.is_grad_enabled():
        return list(call.compute())
    earlier_tangents = [tangent for tangents in call.earlier for tangent in tangents]
    return call.differentiable([*call.kept.links, *earlier_tangents])


@opaque
class _Differentiable(torch.autograd.Function):
    """Gradients of some order; the gradients of the next order are its backward."""

    @staticmethod
    def forward(
        ctx: Any, call: _Call, linked: LinkedInputs, *_: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        gradients = [None if value is None else value.detach() for value in call.compute()]
        ctx.refusal = ""
        try:
            derivative = call.derivative()
        except NotAvailable as error:
            ctx.refusal = str(error)
        else:
            ctx.reached_results = derivative.reached_results
            found = zip(gradients, derivative.differentiable)
            ctx.mark_non_differentiable(
                *[value for value, has_derivative in found if value is not None and not has_derivative]
            )
        ctx.save_for_backward(*call.saved, *(t for tangents in call.earlier for t in tangents))
        ctx.call = replace(call, saved=(), earlier=(), compiled=None)
        ctx.count = len(call.saved)
        ctx.separate, ctx.ends = linked.separate, len(linked.links)
        ctx.set_materialize_grads(False)
        return tuple(gradients)

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        if ctx.separate is not None:
            ctx.separate.begin()
        gradients = _derivatives_of(ctx, tangents)
        wanted = ctx.needs_input_grad[2:]  # a merged derivative returns zeros for independent inputs
        if ctx.separate is not None:
            gradients = ctx.separate.hold_back(gradients)
        gradients = [value if is_wanted else None for value, is_wanted in zip(gradients, wanted)]
        skip_leaf_hooks(ctx, gradients)
        return (None, None, *gradients, *[None] * (len(wanted) - len(gradients)))


def _derivatives_of(ctx: Any, tangents: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """Returns the gradients of the next order, given the node of some gradients with tangents. Appends None per result
    of the graph, since `ctx.ends` includes edges to results."""
    if ctx.refusal:
        raise _unsupported(ctx.refusal)
    call: _Call = ctx.call
    if call is not None and call.watch is not None:
        used = (indices for indices, tangent in zip(ctx.reached_results, tangents) if tangent is not None)
        call.watch.refuse(frozenset().union(*used))
    values = ctx.saved_tensors
    if not compat.retains_graph():
        ctx.maybe_clear_saved_tensors()
        ctx.call = None
    rest = iter(values[ctx.count :])
    earlier = tuple(tuple(next(rest) for _ in kinds) for kinds in call.orders)
    gradients = _gradients(replace(call, saved=values[: ctx.count], earlier=earlier), tangents)
    return [*gradients, *[None] * (ctx.ends - len(gradients))]


_differentiable = compat.raw_apply(_Differentiable)


def _unsupported(why: str) -> Unsupported:
    return Unsupported(
        Diagnostic(
            "MD403",
            "a compiled graph cannot be differentiated twice",
            why=f"The derivative of its gradients cannot be computed from the values that were kept. {why}",
            fix="Run the function without minidynamo there: `fn.__wrapped__(...)`.",
        )
    )


def with_version(value: torch.Tensor) -> HeldInput:
    """Returns a detached alias of `value`, with its version."""
    held = value.detach()
    return held, compat.version_of(held)
