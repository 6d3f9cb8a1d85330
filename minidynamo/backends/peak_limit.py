"""Owns the decision that a graph runs as it was captured, because compiled it would need more memory than in eager.

What compiled graphs need is known from their plans, what eager needs from a rehearsal
(`autograd/eager_peak/rehearsal.py`). What kernels take inside both know from `memory/workspace.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.aot import AotGraphs
from minidynamo.autograd.eager_peak.gradients_apart import Wholes, gradients_apart, returns_parts
from minidynamo.autograd.eager_peak.rehearsal import eager_memory
from minidynamo.autograd.eager_peak.with_hints import with_hints
from minidynamo.autograd.graph.numbers import has_symbols
from minidynamo.autograd.runtime.partial_backward import BackwardPart, part_of
from minidynamo.config import config
from minidynamo.errors import Diagnostic, GraphRefused
from minidynamo.graph.rng_replay import random_state
from minidynamo.graph.torch_settings import AUTOCAST_DEVICES
from minidynamo.memory.graph_plan import graph_plan
from minidynamo.memory.plan import ROUNDING, MemoryPlan
from minidynamo.memory.storages import storages_of

PlanBackward = Callable[[fx.GraphModule], MemoryPlan]


@dataclass(frozen=True)
class _Need:
    """The most bytes at one time, and how many tensors hold them."""

    bytes: int
    tensors: int


@dataclass(frozen=True)
class _Captured:
    """A graph, and what the autograd stage has made of it; `theirs` is the memory of arguments."""

    gm: fx.GraphModule
    example_inputs: Sequence[Any]
    graphs: AotGraphs
    theirs: Collection[object]

    @property
    def wholes(self) -> Wholes:
        """The arguments, with lists spelled out, and what the forward graph returns."""
        given = enumerate(self.graphs.layout.flatten(self.example_inputs))
        made = ((place, node.meta["val"]) for place, node in enumerate(_results(self.graphs)) if node is not None)
        return {**{("input", i): value for i, value in given}, **{("graph", place): value for place, value in made}}

    @property
    def results(self) -> Sequence[Any]:
        """The nodes of what the program returns."""
        returned: Any = self.gm.graph.output_node().args[0]
        return returned if isinstance(returned, (tuple, list)) else (returned,)


class PeakLimit:
    """What becomes of a captured graph is told to `report_graphs`; `check` then asks for the plan of its forward graph.

    `plan_backward` plans a backward graph for the code that will run it. Where that takes long, `estimate` gives a plan
    that needs as much or more; code whose sizes vary is not made before it is needed, since that decides on sizes.
    """

    def __init__(self, plan_backward: PlanBackward, estimate: PlanBackward | None = None) -> None:
        self.plan_backward = plan_backward
        self.estimate = estimate
        self.captured: _Captured | None = None

    def report_graphs(self, gm: fx.GraphModule, example_inputs: Sequence[Any], graphs: AotGraphs) -> None:
        """The graph that is going to be compiled, and what the autograd stage has made of it."""
        # Under autocast, what is converted lives as long as the block, which the graph does not know.
        known = config.eager_peak and not any(map(torch.is_autocast_enabled, AUTOCAST_DEVICES))
        self.captured = _Captured(gm, example_inputs, graphs, _in_arguments(graphs)) if known else None

    def check(self, make_plan: Callable[[], MemoryPlan]) -> None:
        """Raises GraphRefused where the compiled graph, or its backward, would need more memory than eager."""
        captured, self.captured = self.captured, None
        if captured is None:
            return
        graphs, plan = captured.graphs, make_plan()
        need = _need(plan)
        if graphs.backward is None:
            # Eager needs that, and what functions of several operations make between them.
            if _is_above(need, graph_plan(captured.gm, "captured").peak()):
                eager = eager_memory(captured.gm, captured.example_inputs)
                if eager is not None:
                    _compare("in forward", need, eager.peak)
            return
        between = _between(plan, graphs)
        in_parts = returns_parts(graphs.signature, captured.wholes, captured.results)
        supposed = None if in_parts else graphs.eager  # gradients of parts are larger in the traced graph than in eager
        whole = _Backward(captured, graphs.backward, self.estimate or self.plan_backward)
        backward = whole.need()
        if (
            supposed is None
            or _is_above(need, supposed.eager.peak)
            or _is_above(between, supposed.eager.between)
            or _is_above(backward, supposed.eager.peak)
        ):
            self.compare(captured, need, between, backward)
        held = whole.need(held=True)
        if supposed is None or _is_above(held, supposed.held):
            self.compare(captured, need, between, held, held=True)
        if supposed is None or _is_above(need, supposed.eager.forward):
            # Of gradients that come in as one number each, little may be left in eager.
            repeated = _Backward(captured, _taking_repeated(captured), self.estimate or self.plan_backward)
            self.compare(captured, need, between, repeated.need(repeated=True), repeated=True)

    def compare(self, captured: _Captured, forward: _Need, between: _Need, backward: _Need, **how: bool) -> None:
        """Raises GraphRefused where one of these is more than eager needs, in the case that `eager_memory` is told by
        `how`; `backward` may be an estimate."""
        eager = eager_memory(captured.gm, captured.example_inputs, **how)
        if eager is None:
            return
        states = _states(captured.graphs)
        _compare("in forward", forward, eager.peak + sum(states))
        _compare("until backward", between, eager.between + sum(states))
        allowed = eager.peak + sum(states) + max(states, default=0)  # the state that there was before one is set again
        if self.estimate is not None and _is_above(backward, allowed):
            graph = _taking_repeated(captured) if how.get("repeated") else captured.graphs.backward
            if has_symbols(list(captured.example_inputs)) and graph is not None:
                graph = with_hints(graph)
            if graph is None:
                return
            backward = _Backward(captured, graph, self.plan_backward).need(**how)
        _compare("in backward", backward, allowed)


def _compare(when: str, need: _Need, allowed: int) -> None:
    if _is_above(need, allowed):
        raise GraphRefused(
            Diagnostic(
                "MD412",
                f"compiled, it would need more memory {when} than in eager: {need.bytes:,} bytes, not {allowed:,}",
                why="What eager writes over, or frees early, would lie in memory of its own.",
                fix="Return new tensors instead of writing to parts of others, or set eager_peak=False.",
            )
        )


class _Backward:
    """What a backward graph of `captured` needs."""

    def __init__(self, captured: _Captured, graph: fx.GraphModule, plan_backward: PlanBackward) -> None:
        assert captured.graphs.partition is not None
        self.captured = captured
        self.saved, self.sources = captured.graphs.partition.saved, captured.graphs.partition.sources
        self.inputs = graph.graph.find_nodes(op="placeholder")
        self.plan = plan_backward(graph)

    def need(self, repeated: bool = False, held: bool = False) -> _Need:
        """The most bytes, if each gradient comes in as one number that is `repeated`, and the results are `held`."""
        captured, returned = self.captured, _returned(self.captured.graphs) if held else {}
        owned = _memory(returned.values(), captured.theirs)
        dying: set[str] = set()
        for place, node in enumerate(self.inputs):
            kind, index = self.sources[place] if place < len(self.sources) else ("tangent", 0)
            if kind == "result" and index in returned:
                continue
            new = _memory([self.saved[place] if place < len(self.saved) else node], captured.theirs)
            owned.update(new)
            dying.update([node.name] if new else ())
        apart = gradients_apart(captured.graphs.signature, captured.wholes, captured.results, repeated)
        before, tensors = sum(owned.values()) + sum(apart.waiting), len(owned) + len(apart.waiting)
        need = _need(self.plan, dying, before, tensors)
        in_the_end = before + self.plan.usage(dying)[-1] + apart.behind
        return max(need, replace(need, bytes=in_the_end), key=lambda need: need.bytes)


def _taking_repeated(captured: _Captured) -> fx.GraphModule:
    """The backward graph that takes gradients as one number each, but for those that are made of those of parts."""
    graphs, graph = captured.graphs, captured.graphs.backward
    assert graph is not None and graphs.partition is not None
    saved = len(graphs.partition.saved)
    joined = gradients_apart(graphs.signature, captured.wholes, captured.results).joined
    tangents = graph.graph.find_nodes(op="placeholder")[saved:]
    alone = (place for place, i in enumerate(graphs.signature.differentiable_results) if i not in joined)
    strides = tuple((place, (0,) * tangents[place].meta["val"].dim()) for place in alone)
    return part_of(graph, saved, BackwardPart(strides=strides), graphs.signature.kept_for)


def _between(plan: MemoryPlan, graphs: AotGraphs) -> _Need:
    """What lives when forward has run: the results, and what is kept for backward. What is copied into arguments is
    gone by then."""
    assert graphs.partition is not None
    results = _results(graphs)
    kept = _memory([*_returned(graphs).values(), *graphs.partition.saved], ())
    copied = [results[m.result] for m in graphs.signature.mutations if m.result is not None and not m.in_place]
    gone = _memory(copied, kept)
    return _Need(plan.usage()[-1] - sum(gone.values()), _counts(plan).usage()[-1] - len(gone))


def _results(graphs: AotGraphs) -> list[Any]:
    """What forward gives to the runtime, as the signature counts it; None for what it has written to inputs itself."""
    (output,) = graphs.forward.graph.find_nodes(op="output")
    results: list[Any] = list(output.args[0])
    for place in sorted(m.result for m in graphs.signature.mutations if m.in_place and m.result is not None):
        results.insert(place, None)
    return results


def _returned(graphs: AotGraphs) -> dict[int, Any]:
    """What of that the program returns, or views of it, by position."""
    results = _results(graphs)
    origins = map(graphs.signature.origin, graphs.signature.outputs)
    return {index: results[index] for origin, index in origins if origin == "graph" and results[index] is not None}


def _states(graphs: AotGraphs) -> list[int]:
    """The bytes of the states of generators that are kept for checkpoints: eager keeps them, too, and asks no operation
    for them."""
    kept = graphs.forward.graph.find_nodes(op="call_function", target=random_state)
    return [node.meta["val"].nbytes for node in kept]


def _in_arguments(graphs: AotGraphs) -> dict[object, int]:
    """The memory of the arguments, and of what forward copies into them."""
    given = graphs.forward.graph.find_nodes(op="placeholder")
    copies = graphs.forward.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    return _memory([*given, *(copy.args[1] for copy in copies)], ())


def _memory(nodes: Iterable[fx.Node], known: Collection[object]) -> dict[object, int]:
    """The bytes of each storage that nodes lie in, but for those that are known."""
    return {key: size for key, size in storages_of(nodes).items() if key not in known}


def _need(plan: MemoryPlan, owned: Collection[str] = (), before: int = 0, tensors: int = 0) -> _Need:
    """What a plan says, on top of what there is before; inputs in `owned` die."""
    usage, counts = plan.usage(owned), _counts(plan).usage(owned)
    most, step = max((used, -step) for step, used in enumerate([0, *usage]))
    return _Need(before + most, tensors + [0, *counts][-step])


def _counts(plan: MemoryPlan) -> MemoryPlan:
    """The same plan, which counts tensors."""
    return replace(plan, buffers=tuple(replace(buffer, bytes=1) for buffer in plan.buffers))


def _is_above(need: _Need, allowed: int) -> bool:
    return need.bytes - allowed > need.tensors * ROUNDING
