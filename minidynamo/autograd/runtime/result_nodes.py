"""Owns what autograd sees between the results of one compiled graph: that some are computed from others.

The graph is one node of autograd's graph, so gradients go from a result to one that it is computed from inside of that.
A result that is computed from others gets a node in front of it, with edges to those. As a rule gradients pass
through it as they are. Where somebody watches what arrives at another result, by a hook, say, the node computes that
and hands it there, and the graph's node takes what comes in for results instead of computing it.

What is computed from what is found out in `autograd/trace/joint.py`, and the graphs are made in `partial_backward.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.autograd.graph.signature import GraphSignature
from minidynamo.autograd.runtime.input_nodes import LeadingResult, without_data
from minidynamo.autograd.runtime.result_hooks import all_behind, in_front, main_node, watch_hooks
from minidynamo.autograd.runtime.saved_per_result import CompiledResult, received
from minidynamo.core.references import Reference
from minidynamo.errors import Diagnostic, Unsupported
from minidynamo.graph.boxed import BoxedCallable
from minidynamo.graph.tensor_hooks import hooks_to_come, may_ask_for

Arriving = Callable[[Any, int, torch.Tensor], Sequence[torch.Tensor | None]]

MOST_DECISIONS = 16
"""How many backward calls are remembered of one graph: more than run at a time."""


class Chains:
    """What autograd is told about the places of one compiled graph: first the inputs that it writes to, then the other
    results that are differentiable, then the outputs that are views.

    `arriving` computes what arrives at those in `signature.arrivals`, given the graph's node, and the gradient of the
    result at a place. What arrives at others is not computed: those who watch it are refused.
    """

    def __init__(self, signature: GraphSignature, arriving: Arriving) -> None:
        self.arriving = arriving
        self.signature = signature
        self.differentiable = signature.differentiable_results
        self.arrivals = [place for place, _ in signature.arrivals]
        self.on_the_way = signature.on_the_way or ((),) * len(self.differentiable)
        self.zeros = {(result, place) for place, results in signature.zeros_at for result in results}
        self.written = [self.differentiable.index(m.result) for m in _collecting(signature)]
        self.sources = sorted({place for places in (*self.on_the_way, signature.saved_results) for place in places})
        self.views = [place for place in self.sources if place >= len(self.differentiable)]
        self.order = _order({**dict(enumerate(self.on_the_way)), **self._bases(signature)})
        unseen = {*self.sources}.difference(self.arrivals)
        self.unseen_behind = [unseen & all_behind(place, self.on_the_way) for place in range(len(self.on_the_way))]

    def _bases(self, signature: GraphSignature) -> dict[int, tuple[int, ...]]:
        """For each place of a view that of what it is a view of, if it has one."""
        results = {("graph", result): place for place, result in enumerate(self.differentiable)}
        inputs = {("input", m.index): self.differentiable.index(m.result) for m in _collecting(signature)}
        plans = {place: signature.outputs[place - len(self.differentiable)] for place in self.views}
        bases = {place: (results | inputs).get(signature.origin(plan)) for place, plan in plans.items()}
        return {place: () if base is None else (base,) for place, base in bases.items()}

    def join(
        self,
        made: list[Any],
        inputs: Sequence[torch.Tensor],
        view: Callable[[int], torch.Tensor],
        write: Callable[[torch.Tensor, torch.Tensor], None],
    ) -> dict[int, torch.Tensor]:
        """Make the edges between the results `made` of a call, behind which `inputs` get those that were written to
        them by `write`. Returns the outputs that `view` had to make by their numbers for this."""
        written = dict(zip(self.written, inputs, strict=True))
        node = made[self.differentiable[0]].grad_fn
        watch = None if node is None else _Watch(self.arrivals, self.signature)
        if watch is not None:
            main_node(node)[0].watch = watch
        found: dict[int, torch.Tensor] = {}
        for place in self.order:
            if place >= len(self.differentiable):
                found[place] = view(place - len(self.differentiable))
                continue
            position = self.differentiable[place]
            if watch is not None and self.on_the_way[place]:
                sources = [found[source] for source in self.on_the_way[place]]
                made[position] = _chained(self, place, watch, [made[position].detach()], made[position], *sources)
            if place in written:
                write(written[place], made[position])
            found[place] = written.get(place, made[position])
        if watch is not None:
            for place in self.sources:
                ours = place < len(self.differentiable) and place not in written
                watch.add(place, found[place], has_our_node=ours)
        return {place - len(self.differentiable): found[place] for place in self.views}


def has_chains(signature: GraphSignature) -> bool:
    """Whether autograd has to be told of edges, or of inputs that are written to and saved, at each call."""
    written = {mutation.result for mutation in signature.mutations}
    saved = (signature.differentiable_results[place] for place in signature.saved_results)
    return any(signature.on_the_way) or not written.isdisjoint(saved)


def noting(run: BoxedCallable, signature: GraphSignature) -> BoxedCallable:
    """`run`, after which the graph's node knows the results that eager saves, for `watch_of`."""
    positions = [signature.differentiable_results[place] for place in signature.saved_results]

    def noted(args: list[Any]) -> Any:
        made = run(args)
        node = made[positions[0]].grad_fn
        if node is not None:
            main_node(node)[0].results = {i: Reference(made[i]) for i in positions}
        return made

    return noted


def watch_of(node: Any, signature: GraphSignature) -> _Watch | None:
    """Who watches the results of the call whose node this is; None where that does not matter."""
    watch: _Watch | None = getattr(node, "watch", None)
    references = getattr(node, "results", None)
    if watch is None and references is not None:
        watch = node.watch = _Watch((), signature)
        known = _watched_noted(node)
        for place, number in zip(signature.saved_results, references):
            watch.tensors[place], watch.hooks[place] = references[number], known[number]
    return watch


def _collecting(signature: GraphSignature) -> list[Any]:
    """The mutations of inputs that collect history."""
    return [mutation for mutation in signature.mutations if mutation.result is not None]


def _order(behind: Mapping[int, Sequence[int]]) -> list[int]:
    """All places, each behind those that it is computed from, or a view of."""
    order: dict[int, None] = {}

    def visit(place: int) -> None:
        if place not in order:
            for source in behind[place]:
                visit(source)
            order[place] = None

    for place in behind:
        visit(place)
    return list(order)


class _Watch:
    """Who watches the gradients of the places of one call that results are computed from; what arrives at `seen` ones
    can be computed."""

    def __init__(self, seen: Collection[int], signature: GraphSignature) -> None:
        self.seen = seen
        self.signature = signature
        self.tensors: dict[int, Reference] = {}
        self.hooks: dict[int, list[Mapping[int, Any]]] = {}
        self.decided: dict[int, bool] = {}

    def add(self, place: int, tensor: torch.Tensor, *, has_our_node: bool) -> None:
        """Look at the tensor of a place, too."""
        node: Any = tensor.grad_fn
        if node is None:
            return
        self.tensors[place] = Reference(tensor)
        hooks = self.hooks[place] = []
        if not has_our_node:
            hooks.append(hooks_to_come(tensor))
            return
        outputs = getattr(node, "watched", None)
        if outputs is None:
            outputs = node.watched = {}
        outputs[tensor.output_nr] = hooks

    def decide(self, gradient: torch.Tensor, unseen: Collection[int]) -> bool:
        """Whether somebody watches in the backward that is running; the same answer at each node. Raises where somebody
        does in vain: at places that are `unseen` from this node, or since a gradient that arrives from another result
        is not differentiable, and comes alone."""
        if any(map(self.is_watched, unseen)):
            raise _not_seen()
        number = compat.current_backward()
        if number not in self.decided:
            self.decided[number] = any(map(self.is_watched, self.seen))
            if len(self.decided) > MOST_DECISIONS:
                del self.decided[min(self.decided)]
        if self.decided[number] and (torch.is_grad_enabled() or compat.is_batched(gradient)):
            raise _not_seen()
        return self.decided[number]

    def alive(self, places: Iterable[int]) -> list[tuple[int, torch.Tensor]]:
        """The tensors at `places` that are still there, each with its place."""
        found = ((place, self.tensors[place]()) for place in places if place in self.tensors)
        return [(place, tensor) for place, tensor in found if tensor is not None]

    def refuse(self, places: Iterable[int]) -> None:
        """Raise if somebody watches one of `places`, where gradients of gradients would arrive."""
        for place in sorted(places):
            if self.is_watched(place):
                raise _not_brought(place, self.signature)

    def is_watched(self, place: int) -> bool:
        """Whether somebody could tell what arrives at a place."""
        if place not in self.tensors:
            return False
        tensor = self.tensors[place]()
        if any(self.hooks[place]) or (tensor is not None and tensor.retains_grad):
            return True
        return tensor is not None and not compat.asks_for_all_gradients() and may_ask_for(tensor)


def _not_seen() -> Unsupported:
    return Unsupported(
        Diagnostic(
            "MD411",
            "a gradient between results of a compiled graph cannot be shown in this backward",
            why="Somebody watches it, by a hook, by `retain_grad()` or as what `torch.autograd.grad` is asked for. At a"
            " view, and with `create_graph=True` or `is_grads_batched=True`, it is not computed apart from the"
            " gradients of the inputs.",
            fix="Call `minidynamo.graph_break()` in the function behind the result that is watched.",
        )
    )


def _not_brought(place: int, signature: GraphSignature) -> Unsupported:
    return Unsupported(
        Diagnostic(
            "MD411",
            f"what arrives at {_name(place, signature)} cannot be shown where gradients are differentiated",
            why="Somebody watches it, by a hook, by `retain_grad()` or as what `torch.autograd.grad` is asked for. In"
            " eager gradients of gradients go through it, since it was saved for backward. In a compiled graph they go"
            " to its inputs at once.",
            fix="Remove the hook before the second backward, or run the function without minidynamo there:"
            " `fn.__wrapped__(...)`.",
        )
    )


def _name(place: int, signature: GraphSignature) -> str:
    """What the user calls the tensor at a place."""
    outputs, result = [place - len(signature.differentiable_results)], None
    if outputs[0] < 0:
        result = signature.differentiable_results[place]
        outputs = [i for i, plan in enumerate(signature.outputs) if (plan.origin, plan.index) == ("graph", result)]
    written = [signature.inputs[m.index] for m in signature.mutations if m.result == result is not None]
    return f"`{written[0]}`" if written else f"result {outputs[0]} of a compiled graph" if outputs else "a result"


def is_cut(node: Any) -> bool:
    """Whether the gradients that come in at the node of a graph have all that arrives from other results."""
    watch: _Watch | None = getattr(node, "watch", None)
    return watch is not None and watch.decided.get(compat.current_backward(), False)


def watched(function: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
    """`function`, whose nodes know from now on of hooks on results that others are computed from."""
    return watch_hooks(function, _notice)


def _notice(node: Any, output: int | None, hooks: Mapping[int, Any]) -> None:
    main, place = main_node(node, output)
    _watched_noted(main)
    for one, at in {(node, output), (main, place)}:
        for number, known in getattr(one, "watched", {}).items():
            if at is None or at == number:
                known.append(hooks)


def _watched_noted(main: Any) -> dict[int, list[Mapping[int, Any]]]:
    """The hooks of results that the node of a graph knows by `noting`."""
    if hasattr(main, "results") and not hasattr(main, "watched"):
        main.watched = {number: [] for number in main.results}
    return getattr(main, "watched", {})


@in_front
class ChainedResult(torch.autograd.Function):
    """The node of a result that is computed from others. It holds no tensors."""

    boxed_grads_call = True

    @staticmethod
    def forward(
        ctx: Any, chains: Chains, place: int, watch: _Watch, value: list[torch.Tensor], *behind: torch.Tensor
    ) -> torch.Tensor:
        ctx.chains, ctx.place, ctx.watch = chains, place, watch
        sources = zip(chains.on_the_way[place], behind[1:])
        ctx.like = {source: without_data(like) for source, like in sources if (place, source) in chains.zeros}
        ctx.set_materialize_grads(False)
        return value.pop()

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[torch.Tensor | None, ...]:
        gradients = received(given)
        del given
        gradient = gradients.pop()
        chains: Chains = ctx.chains
        sources = chains.on_the_way[ctx.place]
        arrived: dict[int, torch.Tensor | None] = {}
        if gradient is not None and ctx.watch.decide(gradient, chains.unseen_behind[ctx.place]):
            main = main_node(ctx)[0]
            arrived = dict(zip(chains.arrivals, chains.arriving(main, ctx.place, gradient), strict=True))
            arrived |= {i: torch.zeros_like(like) for i, like in ctx.like.items() if arrived.get(i) is None}
        return (None, None, None, None, gradient, *(arrived.get(source) for source in sources))


_chained = compat.raw_apply(watched(ChainedResult))
for _kind in (CompiledResult, LeadingResult):
    watched(_kind)
