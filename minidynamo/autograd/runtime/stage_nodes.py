"""Owns the autograd nodes of a backward in stages: a compiled backward returns gradients before its end.

The graph's node has a single edge, to the node of the first stage. The node of each stage has edges to the inputs whose
gradients it returns, and to the node of the next stage. The compiled backward runs in steps
(`graph/boxed.py`): the graph's node begins it, and the node of each stage runs it until the gradients of the stage are
final. Of the nodes that are ready, autograd first runs the nodes that add to `.grad` of a leaf, with
their hooks, so `DistributedDataParallel` sends a bucket before the next stage runs.

Some backwards cannot run in steps: of some results or gradients only, with gradients that are differentiated, or of a
custom compiler. They compute all gradients at the start, and the stages return them as well.

`autograd/backward_stages.py` chooses the stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.autograd.runtime.input_nodes import GRAD_SEED, MOST_RUNS, opaque
from minidynamo.graph.boxed import HandOver, Steps

Edges = tuple[tuple[int, ...], ...]
Gradients = Sequence[torch.Tensor | None]


class Stages:
    """The backwards of one call of a graph."""

    def __init__(self, edges: Edges, device: torch.device) -> None:
        #: Per stage: the indices of its gradients.
        self.edges = edges
        #: The device of the edges between stages.
        self.device = device
        #: Records of backwards by their number, at most MOST_RUNS.
        self.runs: dict[int, _StagedRun] = {}

    def begin(self, run: _StagedRun) -> None:
        """Records the running backward."""
        self.runs[compat.current_backward()] = run
        if len(self.runs) > MOST_RUNS:
            del self.runs[min(self.runs)]

    def hold(self, gradients: Gradients) -> None:
        """Records the gradients of the running backward, unless it runs in steps."""
        if gradients is not IN_STEPS:
            self.begin(_StagedRun(dict(enumerate(gradients))))

    def run_in_steps(self, steps: Steps, receiver: HandOver | None) -> Gradients:
        """Begins a backward that runs in steps. The receiver gets each gradient, as from `graph/boxed.py`."""
        self.begin(_StagedRun({}, steps, receiver))
        return IN_STEPS

    def take(self, stage: int) -> list[torch.Tensor | None]:
        """Returns the gradients of a stage, for the running backward."""
        number = compat.current_backward()
        run = self.runs[number]
        if stage == len(self.edges) - 1:
            del self.runs[number]
        return run.take(self.edges[stage])


IN_STEPS: Gradients = []
"""Replaces the gradients of a backward that runs in steps."""


class _StagedRun:
    """A backward: the gradients computed so far, and the steps that compute the others."""

    def __init__(
        self, computed: dict[int, torch.Tensor | None], steps: Steps | None = None, receiver: HandOver | None = None
    ) -> None:
        self.computed = computed
        self.steps = steps
        self.receiver = receiver

    def take(self, wanted: Sequence[int]) -> list[torch.Tensor | None]:
        """Runs steps until the `wanted` gradients are computed, and returns them."""
        while self.steps is not None and not self.computed.keys() >= {*wanted}:
            try:
                position, cell = next(self.steps)
            except StopIteration as end:
                self.steps = self.receiver = None
                self.computed = {**dict(enumerate(end.value)), **self.computed}
                break
            gradient = cell.pop()
            self.computed[position] = gradient if self.receiver is None else self.receiver(position, gradient)
            del gradient
        return [self.computed.pop(index) for index in wanted]


@compat.boxed
@opaque
class StageNode(torch.autograd.Function):
    """The node of a stage. Its last edge leads to the next stage: autograd takes leaves in an order that depends on it
    (`taking_order`)."""

    @staticmethod
    def forward(ctx: Any, stages: Stages, stage: int, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.stages, ctx.stage = stages, stage
        return torch.empty(0, device=stages.device)

    @staticmethod
    def inlined(ctx: Any, saved: Any, gradients: Any) -> Any:
        return StageNode.backward(ctx, *gradients)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor | None, ...]:
        stages: Stages = ctx.stages
        following = None if ctx.stage == len(stages.edges) - 1 else torch.empty(0, device=stages.device)
        return (None, None, *stages.take(ctx.stage), following)


compat.node_type(StageNode).is_stage = True  # type: ignore[attr-defined]
_stage_node: Callable[..., torch.Tensor] = compat.raw_apply(StageNode)


def stage_nodes(edges: Edges, inputs: Sequence[torch.Tensor | None]) -> tuple[Stages, torch.Tensor]:
    """Returns the stages of a call, and the tensor that the graph's node has its edge to. `inputs` are the links to the
    inputs, by index of the gradient."""
    device = next((value.device for value in inputs if value is not None), GRAD_SEED.device)
    stages, following = Stages(edges, device), GRAD_SEED
    for stage in range(len(edges) - 1, -1, -1):
        following = _stage_node(stages, stage, *[inputs[index] for index in edges[stage]], following)
    return stages, following
