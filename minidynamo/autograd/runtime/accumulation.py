"""Owns the accumulation of gradients in `.grad` while a compiled backward runs, so that gradients die early.

A compiled backward is a single node of autograd's graph: autograd takes the gradients after the whole backward has
returned. Eager adds the gradient of a parameter to `.grad` at once. Here backward itself calls autograd's accumulating
node, for all leaves where neither a hook nor a second node can see the difference; autograd accumulates the other
gradients. Where autograd would first sum the gradients of several nodes, each is added separately here, so the sum may
be rounded differently. Gradients that are not requested are dropped as well.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.autograd.graph.hooks import edges_after, is_hooked, user_hooks_exist
from minidynamo.graph.boxed import HandOver


def make_accumulator(
    ctx: Any, links: Sequence[torch.Tensor | None], args: Sequence[Any], unwanted: Collection[int] = ()
) -> HandOver | None:
    """Builds a function `take(index, gradient)` that backward calls with each gradient as soon as it is computed.

    The function adds a gradient to `.grad`, or drops an unwanted gradient, and returns None. It returns any other
    gradient. `make_accumulator` returns None if no gradient would be added or dropped.

    `ctx` is the node whose backward runs. `links` are its inputs or their links, in the order of the gradients. `args`
    are the values read by backward.
    """
    accumulators = _accumulating_nodes(ctx, links, args, unwanted)
    if not accumulators and not unwanted:
        return None

    def take(index: int, gradient: torch.Tensor) -> torch.Tensor | None:
        if index in unwanted:
            return None
        if index not in accumulators:
            return gradient
        add, grad = accumulators[index]
        if gradient.shape != grad.shape or gradient.dtype is not grad.dtype or gradient.device != grad.device:
            return gradient  # autograd converts it
        add(gradient)
        return None

    return take


def unwanted_gradients(ctx: Any, links: Sequence[torch.Tensor | None]) -> set[int]:
    """Returns indices of the gradients not requested by the running backward: `autograd.grad(y, [x])` requests one."""
    if not links or compat.runs_for_all_leaves():
        return set()
    accumulators = _accumulators(ctx)

    def accumulator_of(link: torch.Tensor) -> Any:
        """Returns the node called with the gradient."""
        if link.grad_fn is None:
            return next(iter(accumulators.get(id(link), ())), None)
        return link.grad_fn.next_functions[link.output_nr][0]

    nodes = ((index, accumulator_of(link)) for index, link in enumerate(links) if link is not None)
    return {index for index, node in nodes if node is not None and compat.will_run(node) is False}


def _accumulating_nodes(
    ctx: Any, links: Sequence[torch.Tensor | None], args: Sequence[Any], unwanted: Collection[int]
) -> dict[int, tuple[Any, torch.Tensor]]:
    """Returns, by index of the gradient, the accumulating node of a leaf and `leaf.grad`: running the node now has no
    visible effect except on `.grad`."""
    grads: dict[int, torch.Tensor] = {}
    leaf: Any
    for index, leaf in enumerate(links):
        if leaf is not None and leaf.is_leaf and index not in unwanted:
            grad = leaf.grad
            if grad is not None and type(grad) is torch.Tensor and grad.layout is torch.strided:
                grads[index] = grad
    if not grads or torch.is_anomaly_enabled():  # anomaly mode checks the gradients that backward returns
        return {}
    nodes: dict[int, Any] = {}  # by the id of the leaf; None for a leaf with several gradients, which gets their sum
    for node, _ in edges_after(ctx):
        if type(node) is compat.AccumulateGrad:
            leaf_id = id(node.variable)
            nodes[leaf_id] = None if leaf_id in nodes else node
    accumulators: dict[int, tuple[Any, torch.Tensor]] = {}
    hooked, all_run = user_hooks_exist(), False
    for index, grad in grads.items():
        leaf = links[index]
        node_of_leaf = nodes.get(id(leaf))
        if (
            node_of_leaf is not None
            and (grad.is_cpu or _runs_in_stream_order(grad.device))
            and not (leaf._backward_hooks or leaf._post_accumulate_grad_hooks)
            and not (hooked and is_hooked(leaf, node_of_leaf))
            and (all_run or compat.will_run(node_of_leaf) is True)
        ):
            all_run = all_run or compat.runs_for_all_leaves()  # there is a running backward, since a node will run
            accumulators[index] = node_of_leaf, grad
    if accumulators and compat.have_memory_in_common([*grads.values()], args):
        occupied = set(map(compat.memory_of, filter(_has_storage, args)))
        accumulators = {
            i: (node, grad) for i, (node, grad) in accumulators.items() if compat.memory_of(grad) not in occupied
        }
    return accumulators


def _accumulators(ctx: Any) -> dict[int, list[torch.autograd.graph.Node]]:
    """Returns the accumulating nodes after `ctx`, by the id of the leaf: one node per gradient."""
    accumulators: dict[int, list[torch.autograd.graph.Node]] = {}
    for node, _ in edges_after(ctx):
        if (leaf := compat.leaf_of(node)) is not None:
            accumulators.setdefault(id(leaf), []).append(node)
    return accumulators


def _has_storage(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _runs_in_stream_order(device: torch.device) -> bool:
    """Returns whether work started now on a device is ordered with the work of autograd on that device."""
    if device.type == "cuda":
        return torch.cuda.current_stream(device) == torch.cuda.default_stream(device)
    return device.type == "cpu"
