"""Owns the function of a captured `torch.utils.checkpoint` in a graph: a subgraph that saves only its inputs.

Checks nothing: the tracer ensures that the subgraph has no side effects and returns new memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx
from torch.utils.checkpoint import checkpoint

from minidynamo import compat


def run_checkpoint(
    subgraph: Callable[..., tuple[torch.Tensor, ...]], inputs: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """Runs `subgraph` and returns its results. Backward computes it again, with the same random numbers.

    While autograd traces the graph, the subgraph is inlined: the partition then chooses saved and recomputed values.
    """
    return _run(subgraph, inputs, use_reentrant=False)


def run_reentrant_checkpoint(
    subgraph: Callable[..., tuple[torch.Tensor, ...]], inputs: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """Runs `subgraph` under the reentrant variant, whose backward refuses to compute only some gradients."""
    return _run(subgraph, inputs, use_reentrant=True)


def _run(
    subgraph: Callable[..., tuple[torch.Tensor, ...]], inputs: tuple[torch.Tensor, ...], *, use_reentrant: bool
) -> tuple[torch.Tensor, ...]:
    if compat.torch_dispatch_mode_count():
        return subgraph(*inputs)
    results: tuple[torch.Tensor, ...] = checkpoint(subgraph, *inputs, use_reentrant=use_reentrant)
    return results


CHECKPOINTS = (run_checkpoint, run_reentrant_checkpoint)


def is_reentrant(gm: fx.GraphModule) -> bool:
    """Returns whether the graph, or a subgraph, contains a reentrant checkpoint."""
    graphs = [module.graph for module in gm.modules() if isinstance(module, fx.GraphModule)]
    return any(node.target is run_reentrant_checkpoint for graph in graphs for node in graph.nodes)
