"""Owns what autograd sees between the results of one compiled graph: that some are computed from others.

The graph is one node of autograd's graph, so gradients go from a result to one that it is computed from inside of that.
A result that is computed from others gets a node in front of it, with edges to those. As a rule gradients pass
through it as they are. Where somebody watches what arrives at another result, by a hook, say, the node computes that
and hands it there, and the graph's node takes what comes in for results instead of computing it.

What is computed from what is found out in `joint.py`, and the graphs are made in `parts.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.autograd.holders import CompiledResult
from minidynamo.autograd.signature import GraphSignature
from minidynamo.errors import Diagnostic, Unsupported
from minidynamo.references import Reference

Arriving = Callable[[Any, int, torch.Tensor], Sequence[torch.Tensor | None]]

MOST_DECISIONS = 16
"""How many backward calls are remembered of one graph: more than run at a time."""


class Chains:
    """The edges between the results of one compiled graph. `arriving` computes what arrives at those in
    `signature.arrivals`, given the graph's node, and the gradient of the result at a place."""

    def __init__(self, signature: GraphSignature, arriving: Arriving) -> None:
        self.arriving = arriving
        self.differentiable = signature.differentiable_results
        self.arrivals = [place for place, _ in signature.arrivals]
        self.on_the_way = signature.on_the_way
        self.order = _order(signature.on_the_way)

    def joining(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """`apply`, which calls the graph under autograd, with the edges."""
        return lambda args, *links: self.joined(list(apply(args, *links)))

    def joined(self, made: list[Any]) -> list[Any]:
        """The results of a call, with the edges between them."""
        node = made[self.differentiable[0]].grad_fn
        if node is None:
            return made
        watch = _main(node).watch = _Watch()
        for place in self.order:
            position = self.differentiable[place]
            sources = [made[self.differentiable[source]] for source in self.on_the_way[place]]
            made[position] = _chained(self, place, watch, [made[position].detach()], made[position], *sources)
        for place in self.arrivals:
            watch.add(made[self.differentiable[place]])
        return made


def _order(on_the_way: Sequence[Sequence[int]]) -> list[int]:
    """The results that are computed from others, each behind those."""
    order: dict[int, None] = {}

    def visit(place: int) -> None:
        if on_the_way[place] and place not in order:
            for source in on_the_way[place]:
                visit(source)
            order[place] = None

    for place in range(len(on_the_way)):
        visit(place)
    return list(order)


class _Watch:
    """Who watches the gradients of the results of one call that others are computed from."""

    def __init__(self) -> None:
        self.results: list[Reference] = []
        self.hooks: list[Mapping[int, Any]] = []
        self.decided: dict[int, bool] = {}

    def add(self, result: torch.Tensor) -> None:
        """Look at a result, too."""
        self.results.append(Reference(result))
        node: Any = result.grad_fn
        outputs = getattr(node, "watched", None)
        if outputs is None:
            outputs = node.watched = {}
        outputs[result.output_nr] = self

    def decide(self, gradient: torch.Tensor) -> bool:
        """Whether somebody watches in the backward that is running; the same answer at each node. Raises where somebody
        does in vain: a gradient that arrives from another result is not differentiable, and comes alone."""
        number = compat.current_backward()
        if number not in self.decided:
            self.decided[number] = self.is_watched(torch.is_grad_enabled() or compat.is_batched(gradient))
            if len(self.decided) > MOST_DECISIONS:
                del self.decided[min(self.decided)]
        return self.decided[number]

    def is_watched(self, is_beyond: bool) -> bool:
        """Whether somebody could tell what arrives. Of a backward for some tensors nobody says which they are."""
        alive = [result for reference in self.results if (result := reference()) is not None]
        if any(self.hooks) or any(result.retains_grad for result in alive):
            if is_beyond:
                raise _not_seen()
            return True
        return not is_beyond and bool(alive) and not compat.asks_for_all_gradients()


def _not_seen() -> Unsupported:
    return Unsupported(
        Diagnostic(
            "MD411",
            "a gradient between results of a compiled graph cannot be shown in this backward",
            why="Somebody watches it, by a hook or `retain_grad()`, but with `create_graph=True` or"
            " `is_grads_batched=True` it is not computed apart from the gradients of the inputs.",
            fix="Call `minidynamo.graph_break()` in the function behind the result that is watched.",
        )
    )


def is_cut(node: Any) -> bool:
    """Whether the gradients that come in at the node of a graph have all that arrives from other results."""
    watch: _Watch | None = getattr(node, "watch", None)
    return watch is not None and watch.decided.get(compat.current_backward(), False)


def watched(function: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
    """`function`, whose nodes know from now on of hooks on results that others are computed from."""
    compat.notice_hooks(function, _notice)
    return function


def _notice(node: Any, output: int | None, hooks: Mapping[int, Any]) -> None:
    for number, watch in getattr(node, "watched", {}).items():
        if output is None or output == number:
            watch.hooks.append(hooks)


def _main(node: Any) -> Any:
    """The node of the whole graph, given one of a result that no edges were made for."""
    return node.next_functions[0][0] if type(node) in _OF_RESULTS else node


class ChainedResult(torch.autograd.Function):
    """The node of a result that is computed from others. It holds no tensors."""

    boxed_grads_call = True

    @staticmethod
    def forward(
        ctx: Any, chains: Chains, place: int, watch: _Watch, value: list[torch.Tensor], *_: torch.Tensor
    ) -> torch.Tensor:
        ctx.chains, ctx.place, ctx.watch = chains, place, watch
        ctx.set_materialize_grads(False)
        return value.pop()

    @staticmethod
    def backward(ctx: Any, *given: Any) -> tuple[torch.Tensor | None, ...]:
        gradients: list[torch.Tensor | None] = given[0] if compat.HAS_BOXED_GRADIENTS else list(given)
        del given
        gradient = gradients.pop()
        chains: Chains = ctx.chains
        sources = chains.on_the_way[ctx.place]
        arrived: dict[int, torch.Tensor | None] = {}
        if gradient is not None and ctx.watch.decide(gradient):
            main = _main(ctx.next_functions[0][0])
            arrived = dict(zip(chains.arrivals, chains.arriving(main, ctx.place, gradient), strict=True))
        return (None, None, None, None, gradient, *(arrived.get(source) for source in sources))


_chained = compat.raw_apply(watched(ChainedResult))
_OF_RESULTS = (compat.node_type(watched(CompiledResult)),)
