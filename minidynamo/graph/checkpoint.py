"""Owns what a captured `torch.utils.checkpoint` is in a graph: a subgraph that runs and keeps its inputs alone.

It checks nothing: the tracer has made sure that the subgraph changes nothing and returns memory of its own.
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
    """What `subgraph` returns. Backward computes it once more, with the same random numbers.

    While autograd traces the graph, it runs as it is: what is kept and what is computed again is then for the partition
    to decide.
    """
    return _run(subgraph, inputs, use_reentrant=False)


def run_reentrant_checkpoint(
    subgraph: Callable[..., tuple[torch.Tensor, ...]], inputs: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """The same by the reentrant variant, whose backward refuses to compute some gradients only."""
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
    """Whether a reentrant checkpoint is in the graph, or in a subgraph of it."""
    graphs = [module.graph for module in gm.modules() if isinstance(module, fx.GraphModule)]
    return any(node.target is run_reentrant_checkpoint for graph in graphs for node in graph.nodes)
