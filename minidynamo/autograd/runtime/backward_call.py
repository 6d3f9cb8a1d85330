"""Owns the call of a compiled backward: the choice of the part to run, and the layout of incoming gradients.

Backward is compiled at the first backward call, under a lock: a graph that is never differentiated costs no
compilation. Where some gradients are not requested, or some results not used, a smaller graph is compiled as well.
`graph_node.py` saves the arguments and calls backward.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.graph.hooks import skip_leaf_hooks
from minidynamo.autograd.graph.layouts import GradientLayout
from minidynamo.autograd.graph.signature import GraphSignature
from minidynamo.autograd.runtime.accumulation import make_accumulator
from minidynamo.autograd.runtime.partial_backward import WHOLE, BackwardPart, part_of
from minidynamo.autograd.runtime.result_nodes import EMPTY, is_cut
from minidynamo.autograd.runtime.stage_nodes import Stages
from minidynamo.core.compile_scope import isolated
from minidynamo.core.locks import ForkSafeLock
from minidynamo.graph.backward_calls import InlinedBackward
from minidynamo.graph.boxed import BoxedCallable, HandOver, hands_over, steps_of

MOST_PARTS = 8
"""Most partial graphs compiled for one backward graph."""


class BackwardCall:
    """Calls the compiled backward on saved values and tangents, and empties both lists.

    `expected` has a fake tensor for each tangent.
    """

    def __init__(self, signature: GraphSignature, parts: BackwardGraphs, expected: Sequence[torch.Tensor]) -> None:
        self.parts = parts
        self.node_graph = graph = signature.graph
        #: Position of each target among the results.
        self.results = graph.positions
        #: Whether values are saved per result, so that values of unused results are missing.
        self.per_result = bool(graph.readers)
        #: Whether results depend on other results; then the graph may be cut at the latter.
        self.has_cuts = bool(graph.gradients)
        #: Per gradient: the targets that the gradient depends on.
        self.sources = [edge.sources for edge in graph.edges]
        #: Targets whose tangents backward returns as views.
        self.aliased_tangents = {target for target, node in enumerate(graph.nodes) if node.is_aliased}
        #: Pairs (gradient, its `Edge.zero_sources`), if there are any.
        self.zero_sources = [(i, edge.zero_sources) for i, edge in enumerate(graph.edges) if edge.zero_sources]
        #: Layout of each tangent, by index.
        self.gradient_layouts = [GradientLayout(value) for value in expected]
        #: Positions of results with symbolic sizes; each call records the shapes.
        self.symbolic = [i for fit, i in zip(self.gradient_layouts, self.results) if fit.is_symbolic]
        #: Triples (check of tangents, graph, whether the graph hands over gradients): the graph takes tangents that
        #: pass the check without conversion.
        self.usual: list[tuple[Callable[..., bool], Callable[..., Any], bool]] = []

    def __call__(
        self,
        ctx: Any,
        args: list[Any],
        tangents: list[torch.Tensor | None],
        unwanted: Collection[int],
        links: Sequence[torch.Tensor | None] = (),
        stages: Stages | None = None,
    ) -> Sequence[torch.Tensor | None]:
        """Returns the gradients. None for the gradients in `unwanted`, and for gradients already added to `.grad` of a
        leaf in `links`. With `stages`, returns IN_STEPS after beginning a backward in steps, if that is possible."""
        unused = {index for index, tangent in enumerate(tangents) if tangent is None}
        if unused:
            without_tangent = (
                index for index, sources in enumerate(self.sources) if sources and unused.issuperset(sources)
            )
            unwanted = {*unwanted, *without_tangent}
        strides = self.unexpected_strides(tangents)
        cut = self.has_cuts and is_cut(ctx)
        part, graph = self.parts.find(BackwardPart(frozenset(unused), frozenset(unwanted), strides, cut))
        check = None if unused or unwanted or cut else self.check_of_unchanged(tangents, part)
        self.append_arguments(ctx, args, tangents, part)
        receivers = [make_accumulator(ctx, links, args, unwanted)] if hands_over(graph) else []
        gradients: Sequence[torch.Tensor | None]
        if stages is not None and not unwanted and not self.zero_sources:
            gradients = begin(stages, graph, args, *receivers)
        else:
            gradients = graph(args, *receivers)
        if check is not None:
            self.usual.append((check, graph, hands_over(graph)))
        if unwanted:
            gradients = [None if index in unwanted else g for index, g in enumerate(gradients)]
        return self.with_zeros(ctx, gradients, unused, unwanted) if self.zero_sources else gradients

    def check_of_unchanged(
        self, tangents: Sequence[torch.Tensor | None], part: BackwardPart
    ) -> Callable[..., bool] | None:
        """Returns a check that accepts tangents like `tangents`, if `part` takes these without conversion; else
        None."""
        strides = dict(part.strides)
        layouts = enumerate(zip(self.gradient_layouts, tangents))
        if len(self.usual) >= MOST_PARTS or self.symbolic:
            return None
        if not all(fit.tensor_layout is torch.strided and fit(t, None, strides.get(i)) is t for i, (fit, t) in layouts):
            return None
        return compat.tensor_guards(tuple(tangents)).check  # type: ignore[arg-type, no-any-return]

    def with_zeros(
        self, ctx: Any, gradients: Sequence[torch.Tensor | None], unused: set[int], unwanted: Collection[int]
    ) -> list[torch.Tensor | None]:
        """Returns `gradients` with zeros in place of None where eager returns zeros.

        Some derivatives are zero for every tangent. Eager returns zeros for such an input if the result is used; the
        compiled backward returns None if all other contributions come from unused results.
        """
        completed = list(gradients)
        for index, results in self.zero_sources:
            if completed[index] is None and index not in unwanted and not unused.issuperset(results):
                completed[index] = torch.zeros_like(ctx.zero_templates[index])
        return completed

    def inlined(
        self, ctx: Any, saved: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]
    ) -> InlinedBackward | None:
        """Returns the graph for these tangents, for a captured backward; None if the call must run by itself."""
        graph = self.parts.graph()
        if graph is None or self.per_result or self.zero_sources:
            return None
        unused = {index for index, tangent in enumerate(tangents) if tangent is None}
        without_tangent = {i for i, sources in enumerate(self.sources) if sources and unused.issuperset(sources)}
        part = BackwardPart(frozenset(unused), frozenset(without_tangent), self.unexpected_strides(tangents))
        strides, layouts, count = dict(part.strides), self.gradient_layouts, len(saved) + len(ctx.numbers)
        symbolic = [i for i, layout in enumerate(layouts) if layout.is_symbolic]
        if not all(layouts[i].is_expected(tangents[i], strides.get(i)) for i in symbolic):
            return None
        graph = part_of(graph, count, part, self.node_graph)
        with graph.graph.inserting_before(graph.graph.find_nodes(op="placeholder")[-1].next):
            for index, node in enumerate(graph.graph.find_nodes(op="placeholder")[count:]):
                layouts[index].convert(node, tangents[index], strides.get(index))
        return InlinedBackward(graph, [*saved, *range(len(ctx.numbers)), *tangents])

    def flow_of(self, ctx: Any, args: list[Any], tangents: list[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        """Returns the gradients that flow from results with a tangent to their direct inputs."""
        unused = frozenset(index for index, tangent in enumerate(tangents) if tangent is None)
        strides = self.unexpected_strides(tangents)
        part, graph = self.parts.find(BackwardPart(unused, strides=strides, returns_flow=True))
        self.append_arguments(ctx, args, tangents, part)
        gradients: Sequence[torch.Tensor | None] = graph(args)
        return gradients

    def append_arguments(
        self, ctx: Any, args: list[Any], tangents: list[torch.Tensor | None], part: BackwardPart
    ) -> None:
        """Appends to the saved values in `args` the remaining arguments of `part`; empties `tangents`."""
        if self.per_result:
            args[:] = [EMPTY if value is None else value for value in args]
        args += ctx.numbers
        shapes = map(ctx.shapes.get, self.results)
        strides = dict(part.strides)
        args += [
            fit.expanded_zeros(shape) if index in part.unused else fit(tangent, shape, strides.get(index))
            for index, (fit, tangent, shape) in enumerate(zip(self.gradient_layouts, tangents, shapes))
        ]
        tangents.clear()

    def as_traced_kinds(self, tangents: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Returns the gradients, converted to dense or sparse as they were when the graph was traced."""
        return [fit.as_traced(tangent) for fit, tangent in zip(self.gradient_layouts, tangents)]

    def tangents(self, ctx: Any, gradients: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Selects the gradients of the differentiable results from all gradients of the node; empties `gradients`."""
        tangents = self.as_traced_kinds([gradients[i] for i in self.results])
        gradients.clear()
        skip_leaf_hooks(ctx, tangents, ctx.unvisited)
        return tangents

    def unexpected_strides(self, tangents: Sequence[torch.Tensor | None]) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Returns (index, strides) of the tangents for which a separate part is compiled: their dimensions have another
        order in memory than in the trace, their elements repeat, or they have gaps and backward returns a view."""
        strides = (
            (index, self.gradient_layouts[index].own_strides(tangent, index in self.aliased_tangents))
            for index, tangent in enumerate(tangents)
            if tangent is not None
        )
        return tuple((index, own) for index, own in strides if own is not None)

    def reusable(
        self, ctx: Any, args: Sequence[Any], unwanted: Collection[int]
    ) -> Callable[[Sequence[torch.Tensor | None]], Any]:
        """Returns the same call as a function of the tangents, without emptying lists of the caller."""
        return lambda tangents: self(ctx, list(args), list(tangents), unwanted)


def begin(
    stages: Stages, graph: Callable[..., Any], args: list[Any], receiver: HandOver | None = None
) -> Sequence[torch.Tensor | None]:
    """Begins a backward in steps, and returns IN_STEPS; returns the gradients if the graph has no steps."""
    steps = steps_of(graph)
    if steps is None:
        results: Sequence[torch.Tensor | None] = graph(args, receiver) if hands_over(graph) else graph(args)
        return results
    return stages.run_in_steps(steps(args), receiver)


class CompiledOnFirstCall:
    """A boxed callable, compiled at the first call; later calls cost an attribute lookup."""

    _boxed_call = True

    def __init__(self, compile_it: Callable[[], BoxedCallable]) -> None:
        self.compile_it = compile_it
        self.lock = ForkSafeLock()
        self.compiled: Callable[..., Any] | None = None

    def __call__(self, args: list[Any]) -> Any:
        return self.ready()(args)

    def ready(self) -> Callable[..., Any]:
        """Returns the compiled callable."""
        if self.compiled is None:
            with self.lock:
                if self.compiled is None:
                    self.compiled = self.compile_it()
        return self.compiled


class BackwardGraphs:
    """The compiled backward graph and partial graphs, each compiled at the first call.

    `graph` returns the whole graph as it was before compilation, if known. `compile_it` may return None for a part;
    then the whole graph is used. After MOST_PARTS parts, unwanted gradients are computed anyway. The parts of unused
    results are never computed with zeros in place of missing tangents: zero times infinity is NaN.
    """

    def __init__(
        self,
        compile_it: Callable[[BackwardPart], BoxedCallable | None],
        graph: Callable[[], fx.GraphModule | None] = lambda: None,
    ) -> None:
        self.graph = graph
        self.compile_it = isolated()(compile_it)
        self.whole = CompiledOnFirstCall(functools.partial(self.compile_it, WHOLE))  # type: ignore[arg-type]
        self.lock = ForkSafeLock()
        #: Compiled parts; None where the whole graph is used.
        self.known: dict[BackwardPart, BoxedCallable | None] = {}

    def find(self, part: BackwardPart) -> tuple[BackwardPart, Callable[..., Any]]:
        """Returns the part, or a larger part, and the callable for it."""
        if part not in self.known and len(self.known) >= MOST_PARTS:
            part = BackwardPart(part.unused, cut=part.cut, returns_flow=part.returns_flow)
        if part not in self.known and part != WHOLE:
            with self.lock:
                if part not in self.known:
                    self.known[part] = self.compile_it(part)
        graph = self.known.get(part)
        return (WHOLE, self.whole.ready()) if graph is None else (part, graph)
