"""Owns the autograd node of a compiled graph: what it saves and frees, and all cases of its backward.

`node_program.py` prints the functions of the node, which run forward, and the usual case of backward. `graph_call.py`
has the steps around the node, `input_nodes.py` and `result_nodes.py` the nodes of single inputs and results.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch

from minidynamo import compat
from minidynamo.autograd.graph.layouts import has_batches
from minidynamo.autograd.graph.signature import GraphSignature
from minidynamo.autograd.partition.packing import Unpack
from minidynamo.autograd.runtime.accumulation import unwanted_gradients
from minidynamo.autograd.runtime.backward_call import BackwardCall
from minidynamo.autograd.runtime.double_backward import DoubleBackward
from minidynamo.autograd.runtime.input_nodes import InputNodes, SeparateInputs
from minidynamo.autograd.runtime.result_hooks import kept_by
from minidynamo.autograd.runtime.result_nodes import ResultNodes
from minidynamo.graph.backward_calls import InlinedBackward
from minidynamo.graph.boxed import BoxedCallable

Saved = Sequence[tuple[str, int]]


class SavedPositions:
    """Positions of the arguments of backward: `inputs` and `number_inputs` among forward's inputs, `computed` and
    `computed_numbers` among the values returned by forward. Numbers are separate, since autograd saves tensors only."""

    def __init__(self, saved: Saved, expected: Sequence[Any], results: int) -> None:
        symbols = [isinstance(like, (str, *compat.SYMBOLIC_NUMBERS)) for like in expected[: len(saved)]]  # or NUMBER
        tensors = [source for source, is_number in zip(saved, symbols) if not is_number]
        numbers = [source for source, is_number in zip(saved, symbols) if is_number]
        self.inputs, self.computed = _split(tensors, results)
        self.number_inputs, self.computed_numbers = _split(numbers, results)


def _split(sources: Saved, results: int) -> tuple[list[int], list[int]]:
    computed = [i + results * (kind == "extra") for kind, i in sources if kind != "input"]
    return [i for kind, i in sources if kind == "input"], computed


class GraphNode:
    """A compiled graph as one node of autograd's graph. `forward` returns the results, then values to save. The methods
    have all cases of backward; `node_program.py` prints the usual case.
    """

    def __init__(
        self,
        signature: GraphSignature,
        forward: BoxedCallable,
        saved: SavedPositions,
        backward: BackwardCall,
        double_backward: DoubleBackward,
    ) -> None:
        self.signature, self.forward, self.saved = signature, forward, saved
        self.backward, self.double_backward = backward, double_backward
        #: Restores packed tensors for callers that differentiate the gradients.
        self.unpack: Unpack | None = None
        plan, graph = double_backward.plan, signature.graph
        positions, edges = graph.positions, [*enumerate(graph.edges)]
        #: Inputs whose history autograd must not enter when they are saved.
        self.unreached = {edge.input for edge in graph.edges if not edge.has_gradient}
        #: Pairs (gradient, its input) of gradients with `Edge.zero_sources`.
        self.zeros = [(k, edge.input) for k, edge in edges if edge.zero_sources]
        self.unvisited = [k for k, edge in edges if not edge.reached_from]
        #: Positions of tensor results without a gradient.
        self.non_differentiable = [
            i for i in range(signature.results) if i not in positions and i not in signature.number_results
        ]
        #: Whether backward frees anything.
        self.runs_once = bool(
            any(node.frees for node in graph.nodes) or saved.inputs or saved.computed or plan.held or plan.random
        )
        self.frees_in_parts = graph.frees_in_parts
        self.targets = frozenset(range(len(positions)))
        #: Per edge: its input, and whether autograd gets an edge to a non-leaf, and to a leaf. A leaf that the graph
        #: only fills with data gets none: its gradient from another graph need not wait for this backward.
        filled = {mutation.index for mutation in signature.mutations}
        self.edges = [
            (edge.input, edge.has_gradient or edge.input in plan.linked, edge.input not in filled or edge.reached_from)
            for edge in graph.edges
        ]
        reaching = [tuple(positions[target] for target in edge.reached_from) for edge in graph.edges]
        self.input_nodes = InputNodes(reaching, len(positions), signature.results, self.gradients)
        self.result_nodes = ResultNodes(signature, plan.held, self.flow_of)
        #: Whether backward has a usual case.
        self.has_usual_case = bool(positions) and not signature.all_gradients

    def run_backward(self, ctx: Any, gradients: list[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        """Returns the gradients of the edges, in the form for autograd; empties `gradients`."""
        if ctx.separate is None:
            return self.returned(ctx, self.gradients(ctx, gradients))
        separate: SeparateInputs = ctx.separate
        separate.begin()
        return self.returned(ctx, separate.hold_back(self.gradients(ctx, gradients)))

    def inlined(
        self, ctx: Any, saved: Sequence[torch.Tensor], received: Sequence[torch.Tensor | None]
    ) -> InlinedBackward | None:
        """Returns the backward of the node `ctx` as a part of a captured backward; None if it must run by itself."""
        is_simple = ctx.separate is None and ctx.layouts is None and not self.signature.graph.readers
        if not is_simple or self.unpack is not None or self.signature.all_gradients or torch.is_grad_enabled():
            return None
        tangents = [received[i] for i in self.backward.results]
        if ctx.watch is not None and any(map(ctx.watch.is_watched, self.result_nodes.sources)):
            return None
        if any(tangent is not None and tangent.layout is not torch.strided for tangent in tangents):
            return None
        gradients = self.backward.inlined(ctx, saved, tangents)
        return None if gradients is None else replace(gradients, returned=functools.partial(self.returned, ctx))

    def returned(self, ctx: Any, gradients: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        """Returns the results of the backward of the node `ctx`, given all gradients. With stages, the nodes of the
        stages return the gradients."""
        if ctx.stages is None:
            return (None, None, *gradients, None)
        ctx.stages.hold(gradients)
        return (None, None, None, torch.empty(0, device=ctx.stages.device))

    def gradients(self, ctx: Any, received: list[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        """Returns the gradients of the inputs; empties `received`."""
        if self.signature.all_gradients:
            compat.check_reentrant_backward()
        tangents = self.backward.tangents(ctx, received)
        used = [target for target, tangent in enumerate(tangents) if tangent is not None]
        if not used:
            return (None,) * len(self.edges)  # autograd visits the node only on the path to another
        state = kept_by(ctx)
        args = self.read(ctx, used) if self.runs_once else []
        if self.runs_once:
            self.free(ctx, used)
        unwanted = unwanted_gradients(ctx, state.links)
        if torch.is_grad_enabled() or has_batches(tangents):
            compiled = self.backward.reusable(ctx, tuple(args), unwanted)
            saved = args if self.unpack is None else self.unpack(args, ctx.numbers)
            return self.double_backward.gradients(state, saved, tangents, compiled, ctx.watch)
        links, state = state.links, None
        return self.backward(ctx, args, tangents, unwanted, links, ctx.stages if ctx.separate is None else None)

    def flow_of(self, ctx: Any, target: int, gradient: torch.Tensor) -> Sequence[torch.Tensor | None]:
        """Returns the gradients that flow from one target to the nodes in `NodeGraph.gradients`. Frees nothing."""
        tangents = [gradient if i == target else None for i in self.targets]
        args = self.read(ctx, [target]) if self.signature.saved else []
        return self.backward.flow_of(ctx, args, self.backward.as_traced_kinds(tangents))

    def read(self, ctx: Any, used: Collection[int]) -> list[Any]:
        """Returns the saved values, with None for values that only unused targets need. Raises if an earlier backward
        freed them."""
        is_freed = not ctx.freed.isdisjoint(used)
        if (self.result_nodes.holders or ctx.own) and not is_freed:
            saved = self.result_nodes.read(ctx, used)
        elif self.frees_in_parts and not is_freed:
            saved = []
        else:
            saved = list(ctx.saved_tensors)  # if freed, autograd raises
        if ctx.layouts is not None:
            return [value if value is None else layout.restored(value) for layout, value in zip(ctx.layouts, saved)]
        return saved

    def freed_by(self, used: Collection[int]) -> frozenset[int]:
        """Returns the targets whose backward raises after a backward of the `used` targets."""
        nodes = self.signature.graph.nodes
        return frozenset().union(*(nodes[target].frees for target in used)) if self.frees_in_parts else self.targets

    def free(self, ctx: Any, used: Collection[int]) -> None:
        """Drops the references to saved values, unless the user retains the graph: each dies at its last use."""
        ctx.maybe_clear_saved_tensors()
        if compat.retains_graph():
            return
        freed = ctx.freed | self.freed_by(used)
        ctx.freed, ctx.is_usual = freed, False
        if freed == self.targets:
            ctx.double_backward = None
        ctx.own = ()
        for target, reference in ctx.owned.items():
            if target in freed and (owned := reference()) is not None:
                owned.free()
