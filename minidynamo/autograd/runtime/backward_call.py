"""Owns the call of a compiled backward: which part of it is asked for, and in what form gradients reach it.

It is compiled at the first backward call, under a lock: a graph that is never differentiated never pays for it. Where
some gradients are not asked for, or results not used, a graph without what they take is compiled beside it. What is
saved for it, and who calls it, is in `graph_call.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from minidynamo.autograd.graph.hooks import spare_leaves
from minidynamo.autograd.graph.layouts import GradientLayout
from minidynamo.autograd.graph.signature import GraphSignature
from minidynamo.autograd.runtime.accumulation import accumulating
from minidynamo.autograd.runtime.partial_backward import WHOLE, Part
from minidynamo.autograd.runtime.result_nodes import is_cut
from minidynamo.autograd.runtime.saved_per_result import NOTHING
from minidynamo.core.compile_scope import isolated
from minidynamo.core.locks import ForkSafeLock
from minidynamo.graph.boxed import BoxedCallable, HandOver, hands_over

MOST_PARTS = 8
"""How many parts of one backward graph are compiled."""


class BackwardCall:
    """Calls the compiled backward on saved tensors and tangents, both of which are given up. `expected` are like the
    tangents; `symbolic` are the results whose sizes must be known for theirs."""

    def __init__(self, signature: GraphSignature, parts: Parts, expected: Sequence[torch.Tensor]) -> None:
        self.parts = parts
        self.results = signature.differentiable_results
        self.apart = bool(signature.kept_for)
        self.chained = bool(signature.arrivals)
        self.sources = signature.gradient_sources
        self.handed_on = signature.handed_on
        self.zeros_from = signature.zeros_from
        self.fits = [GradientLayout(value) for value in expected]
        self.symbolic = [i for fit, i in zip(self.fits, self.results) if fit.is_symbolic]

    def __call__(
        self,
        ctx: Any,
        args: list[Any],
        tangents: list[torch.Tensor | None],
        unwanted: Collection[int],
        links: Sequence[torch.Tensor | None] = (),
    ) -> Sequence[torch.Tensor | None]:
        """The gradients; None for those in `unwanted`, and for those that were added to `.grad` of `links`."""
        unused = {place for place, tangent in enumerate(tangents) if tangent is None}
        if unused:
            idle = (place for place, sources in enumerate(self.sources) if sources and unused.issuperset(sources))
            unwanted = {*unwanted, *idle}
        strides = self.other_strides(tangents)
        part = WHOLE
        graph: Callable[..., Any] = self.parts.whole
        cut = self.chained and is_cut(ctx)
        if unused or unwanted or strides or cut:
            part = Part(frozenset(unused), frozenset(unwanted), strides, cut)
            part, graph = self.parts.find(part)
        self.take(ctx, args, tangents, part)
        made: Sequence[torch.Tensor | None] = graph(args, accumulating(ctx, links, args, unwanted))
        if unwanted:
            made = [None if place in unwanted else g for place, g in enumerate(made)]
        return self.with_zeros(ctx, made, unused, unwanted) if self.zeros_from else made

    def with_zeros(
        self, ctx: Any, made: Sequence[torch.Tensor | None], unused: set[int], unwanted: Collection[int]
    ) -> list[torch.Tensor | None]:
        """The gradients `made`, with the zeros that inputs get from results that are used by derivatives that are zero,
        where all else that they might get comes from results that are not."""
        full = list(made)
        for place, results in self.zeros_from:
            if full[place] is None and place not in unwanted and not unused.issuperset(results):
                full[place] = torch.zeros_like(ctx.like[place])
        return full

    def arriving(self, ctx: Any, args: list[Any], tangents: list[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        """The gradients that arrive at results from others."""
        unused = frozenset(place for place, tangent in enumerate(tangents) if tangent is None)
        strides = self.other_strides(tangents)
        part, graph = self.parts.find(Part(unused, strides=strides, arriving=True))
        self.take(ctx, args, tangents, part)
        made: Sequence[torch.Tensor | None] = graph(args)
        return made

    def take(self, ctx: Any, args: list[Any], tangents: list[torch.Tensor | None], part: Part) -> None:
        """Append what `part` takes behind saved tensors to `args`."""
        if self.apart:
            args[:] = [NOTHING if value is None else value for value in args]
        args += ctx.numbers
        shapes = map(ctx.shapes.get, self.results)
        taken = dict(part.strides)
        args += [
            fit.nothing(shape) if place in part.unused else fit(tangent, shape, taken.get(place))
            for place, (fit, tangent, shape) in enumerate(zip(self.fits, tangents, shapes))
        ]
        tangents.clear()

    def of_their_kinds(self, tangents: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The gradients, dense or sparse as they were when the graph was traced."""
        return [fit.of_this_kind(tangent) for fit, tangent in zip(self.fits, tangents)]

    def tangents(self, ctx: Any, gradients: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """What came in at the node, for differentiable results alone; `gradients` are given up."""
        tangents = self.of_their_kinds([gradients[i] for i in self.results])
        gradients.clear()
        spare_leaves(ctx, tangents, ctx.unvisited)
        return tangents

    def other_strides(self, tangents: Sequence[torch.Tensor | None]) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The strides of gradients that lie in memory in another order than the graph was traced for, with elements
        that repeat, or with gaps that gradients which backward returns have, too."""
        strides = (
            (place, self.fits[place].own_strides(given, place in self.handed_on))
            for place, given in enumerate(tangents)
            if given is not None
        )
        return tuple((place, other) for place, other in strides if other is not None)

    def keeping(
        self, ctx: Any, args: Sequence[Any], unwanted: Collection[int]
    ) -> Callable[[Sequence[torch.Tensor | None]], Any]:
        """The same call as a function of the tangents, which gives nothing up."""
        return lambda tangents: self(ctx, list(args), list(tangents), unwanted)


class Lazy:
    """A boxed callable that is compiled when it is called first; afterwards it is one attribute away."""

    _boxed_call = True

    def __init__(self, compile_it: Callable[[], BoxedCallable]) -> None:
        self.compile_it = compile_it
        self.lock = ForkSafeLock()
        self.compiled: BoxedCallable | None = None

    def __call__(self, args: list[Any], hand_over: HandOver | None = None) -> Any:
        if self.compiled is None:
            with self.lock:
                if self.compiled is None:
                    self.compiled = self.compile_it()
        return _run(self.compiled, args, hand_over)


class Parts:
    """The compiled backward graph, and those of its parts, each compiled when it is called first.

    `compile_it` may have None for a part: the whole takes its place. Beyond MOST_PARTS, unwanted gradients are
    computed. Unused results are always left out: zeros are not nothing, since zero times infinity is no number.
    """

    def __init__(self, compile_it: Callable[[Part], BoxedCallable | None]) -> None:
        self.compile_it = isolated()(compile_it)
        self.whole = Lazy(functools.partial(self.compile_it, WHOLE))  # type: ignore[arg-type]
        self.lock = ForkSafeLock()
        self.known: dict[Part, BoxedCallable | None] = {}

    def find(self, part: Part) -> tuple[Part, Callable[..., Any]]:
        """The part, or one that has more, and what computes it."""
        if part not in self.known and len(self.known) >= MOST_PARTS:
            part = Part(part.unused, cut=part.cut, arriving=part.arriving)
        if part not in self.known and part != WHOLE:
            with self.lock:
                if part not in self.known:
                    self.known[part] = self.compile_it(part)
        graph = self.known.get(part)
        return (WHOLE, self.whole) if graph is None else (part, functools.partial(_run, graph))


def _run(graph: BoxedCallable, args: list[Any], hand_over: HandOver | None = None) -> Any:
    if hand_over is None or not hands_over(graph):
        return graph(args)
    return graph(args, hand_over)  # type: ignore[call-arg]
