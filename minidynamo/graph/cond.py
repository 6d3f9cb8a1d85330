"""Owns the function of a captured `cond` in a graph: it runs one of two subgraphs on the same operands.

Checks nothing: the tracer ensures that both subgraphs take the operands and return tensors of the same kinds.
`boxed.py` writes the function as a Python conditional; `autograd/segments.py` compiles the subgraphs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

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
