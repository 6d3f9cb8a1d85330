"""Owns the functions of captured `cond` and `torch.utils.checkpoint` in a graph.

A `cond` runs one of two subgraphs on the same operands. A checkpoint runs a subgraph that saves only its inputs.

Checks nothing: the tracer ensures that both subgraphs of a `cond` take the operands and return tensors of the same
kinds, and that the subgraph of a checkpoint has no side effects and returns new memory. `boxed.py` writes `cond` as a
Python conditional; `autograd/segments.py` compiles the subgraphs. `func_transforms.py` has transforms of torch.func.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.fx
from torch import fx
from torch.utils.checkpoint import checkpoint

from minidynamo import compat

Branch = Callable[..., tuple[torch.Tensor, ...]]


def run_branch(
    pred: torch.Tensor, true_graph: Branch, false_graph: Branch, operands: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """Returns the results of `true_graph` for `operands` if `pred` holds, else the results of `false_graph`.

    A tracer of torch (for example in the inductor backend) receives torch's own operator.
    """
    if compat.torch_dispatch_mode_count():
        results: tuple[torch.Tensor, ...] = tuple(compat.higher_order_cond(pred, true_graph, false_graph, operands))
        return results
    return (true_graph if pred else false_graph)(*operands)


def is_cond(node: fx.Node) -> bool:
    """Returns whether the node is a captured `cond`. Arguments: predicate, two subgraphs (get_attr nodes), operands."""
    return node.op == "call_function" and node.target is run_branch


def subgraphs_of(gm: fx.GraphModule, node: fx.Node) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Returns the two subgraphs of a captured `cond` in the graph of `gm`, the true branch first."""
    true_graph, false_graph = (gm.get_submodule(str(branch.target)) for branch in node.args[1:3])  # type: ignore[union-attr]
    assert isinstance(true_graph, fx.GraphModule) and isinstance(false_graph, fx.GraphModule)
    return true_graph, false_graph


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
