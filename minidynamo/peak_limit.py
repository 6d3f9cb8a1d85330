"""Owns the decision that a graph runs as it was captured, because compiled it would need more memory than in eager.

What compiled graphs need is known from their plans, what eager needs from a rehearsal (`autograd/rehearsal.py`).
What kernels take inside both know from `kernel_memory.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.aot import AotGraphs
from minidynamo.autograd.gradients_apart import become_others, gradients_apart
from minidynamo.autograd.numbers import has_symbols
from minidynamo.autograd.parts import Part, part_of
from minidynamo.autograd.rehearsal import EagerMemory, eager_memory
from minidynamo.config import config
from minidynamo.errors import Diagnostic, GraphRefused
from minidynamo.graph_memory import graph_plan
from minidynamo.memory_plan import ROUNDING, MemoryPlan
from minidynamo.redrawing import random_state
from minidynamo.storages import storages_in
from minidynamo.switches import AUTOCAST_DEVICES

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
    def flat(self) -> list[Any]:
        """The arguments, with lists spelled out."""
        return self.graphs.layout.flatten(self.example_inputs)

    @property
    def results(self) -> Sequence[Any]:
        """The nodes of what the program returns."""
        returned: Any = self.gm.graph.output_node().args[0]
        return returned if isinstance(returned, (tuple, list)) else (returned,)


class PeakLimit:
    """What becomes of a captured graph is told to `announce`; `check` then asks for the plan of its forward graph.

    `plan_backward` plans a backward graph for the code that will run it. Where that takes long, `estimate` gives a plan
    that needs as much or more; code whose sizes vary is not made before it is needed, since that decides on sizes.
    """

    def __init__(self, plan_backward: PlanBackward, estimate: PlanBackward | None = None) -> None:
        self.plan_backward = plan_backward
        self.estimate = estimate
        self.captured: _Captured | None = None

    def announce(self, gm: fx.GraphModule, example_inputs: Sequence[Any], graphs: AotGraphs) -> None:
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
        backward = _need_of_backward(captured, self.estimate or self.plan_backward)
        supposed = graphs.eager
        if (
            supposed is None
            or _is_above(need, supposed.peak)
            or _is_above(between, supposed.between)
            or _is_above(backward, supposed.peak)
        ):
            eager = eager_memory(captured.gm, captured.example_inputs)
            if eager is None:
                return
            _compare("until backward", between, eager.between + sum(_states(graphs)))
            self.compare(captured, eager, need, backward)
        if (
            supposed is None
            or _is_above(need, supposed.forward)
            or become_others(graphs.signature, captured.flat, captured.results)
        ):
            # Of gradients that come in as one number each, little may be left in eager.
            eager = eager_memory(captured.gm, captured.example_inputs, repeated=True)
            if eager is not None:
                backward = _need_of_backward(captured, self.estimate or self.plan_backward, repeated=True)
                self.compare(captured, eager, need, backward, repeated=True)

    def compare(
        self, captured: _Captured, eager: EagerMemory, forward: _Need, backward: _Need, repeated: bool = False
    ) -> None:
        """Raises GraphRefused where one of them would need more than eager; `backward` may be an estimate."""
        states = _states(captured.graphs)
        _compare("in forward", forward, eager.peak + sum(states))
        allowed = eager.peak + sum(states) + max(states, default=0)  # the state that there was before one is set again
        if self.estimate is not None and _is_above(backward, allowed):
            if has_symbols(list(captured.example_inputs)):
                return
            backward = _need_of_backward(captured, self.plan_backward, repeated)
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


def _need_of_backward(captured: _Captured, plan_backward: PlanBackward, repeated: bool = False) -> _Need:
    """What backward needs, if the results are gone by then. `repeated`: each gradient comes in as one number."""
    graphs, theirs = captured.graphs, captured.theirs
    assert graphs.backward is not None and graphs.partition is not None
    saved = graphs.partition.saved
    graph = graphs.backward
    if repeated:
        tangents = graph.graph.find_nodes(op="placeholder")[len(saved) :]
        strides = enumerate((0,) * node.meta["val"].dim() for node in tangents)
        graph = part_of(graph, len(saved), Part(strides=tuple(strides)), graphs.signature.kept_for)
    plan = plan_backward(graph)
    owned: dict[object, int] = {}
    dying: set[str] = set()
    for place, node in enumerate(graph.graph.find_nodes(op="placeholder")):
        new = _memory([saved[place] if place < len(saved) else node], theirs)
        owned.update(new)
        dying.update([node.name] if new else ())
    apart = gradients_apart(graphs.signature, captured.flat, captured.results, repeated)
    before, tensors = sum(owned.values()) + sum(apart.waiting), len(owned) + len(apart.waiting)
    need = _need(plan, dying, before, tensors)
    in_the_end = before + plan.usage(dying)[-1] + apart.behind
    return max(need, replace(need, bytes=in_the_end), key=lambda need: need.bytes)


def _between(plan: MemoryPlan, graphs: AotGraphs) -> _Need:
    """What lives when forward has run: the results, and what is kept for backward. What is copied into arguments is
    gone by then."""
    assert graphs.partition is not None
    results = _results(graphs)
    origins = map(graphs.signature.origin, graphs.signature.outputs)
    returned = [results[index] for origin, index in origins if origin == "graph"]
    kept = _memory([*filter(None, returned), *graphs.partition.saved], ())
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
    found = dict(storage for node in nodes for storage in storages_in(node.meta.get("val")))
    return {key: size for key, size in found.items() if key not in known}


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
