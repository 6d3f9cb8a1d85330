"""Owns what a captured `torch.utils.checkpoint` is in a graph: a subgraph that runs and keeps its inputs alone.

It checks nothing: the tracer has made sure that the subgraph changes nothing and returns memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint

from minidynamo import compat


def run_checkpoint(
    subgraph: Callable[..., tuple[torch.Tensor, ...]], inputs: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """What `subgraph` returns. Backward computes it once more, with the same random numbers.

    While autograd traces the graph, it runs as it is: what is kept and what is computed again is then for the partition
    to decide.
    """
    if compat.torch_dispatch_mode_count():
        return subgraph(*inputs)
    results: tuple[torch.Tensor, ...] = checkpoint(subgraph, *inputs, use_reentrant=False)
    return results
