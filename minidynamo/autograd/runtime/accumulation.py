"""Owns the adding of gradients to `.grad` while a compiled backward runs, so that gradients die early.

A compiled backward is a single node of autograd's graph: autograd takes the gradients after the whole backward has
returned. Eager adds the gradient of a parameter to `.grad` at once. Here backward itself calls autograd's accumulating
node, for all leaves where no hook and no second node can see the difference; autograd accumulates the rest. Where
autograd would first sum the gradients of several nodes, each is added separately here, so the sum may be rounded
differently. Unrequested gradients are dropped as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.autograd.graph.hooks import is_hooked
from minidynamo.graph.boxed import HandOver


def make_accumulator(
    ctx: Any, links: Sequence[torch.Tensor | None], args: Iterable[Any], unwanted: Collection[int]
) -> HandOver | None:
    """Builds a function `take(index, gradient)` for backward to call after each gradient: adds the gradient to `.grad`
    or drops an unwanted gradient, and returns None; returns every other gradient. Returns None if nothing would be
    added or dropped.

    `ctx` is the node whose backward runs. `links` are its inputs or their links, in the order of the gradients. `args`
    are the values read by backward.
    """
    takers = _takers(ctx, links, args, unwanted)
    if not takers and not unwanted:
        return None

    def take(index: int, gradient: torch.Tensor) -> torch.Tensor | None:
        if index in unwanted:
            return None
        if index not in takers:
            return gradient
        leaf, add = takers[index]
        if not _is_addable(gradient, leaf.grad):
            return gradient
        add(gradient)
        return None

    return take


def unwanted_gradients(ctx: Any, links: Sequence[torch.Tensor | None]) -> set[int]:
    """Returns indices of the gradients not requested by the running backward: `autograd.grad(y, [x])` requests one."""
    if not links or compat.asks_for_all_gradients():
        return set()
    accumulators = _accumulators(ctx)

    def accumulator_of(link: torch.Tensor) -> Any:
        """Returns the node called with the gradient."""
        if link.grad_fn is None:
            return next(iter(accumulators.get(id(link), ())), None)
        return link.grad_fn.next_functions[link.output_nr][0]

    found = ((index, accumulator_of(link)) for index, link in enumerate(links) if link is not None)
    return {index for index, node in found if node is not None and compat.will_run(node) is False}


def _takers(
    ctx: Any, links: Sequence[torch.Tensor | None], args: Iterable[Any], unwanted: Collection[int]
) -> dict[int, tuple[torch.Tensor, Any]]:
    """Returns, by index of the gradient, each leaf and the function for adding to `leaf.grad`."""
    held = [index for index, link in enumerate(links) if link is not None and link.is_leaf and link.grad is not None]
    if not held or torch.is_anomaly_enabled():  # anomaly mode checks the gradients that backward returns
        return {}
    nodes = _accumulators(ctx)
    occupied = set(map(compat.memory_of, filter(_has_storage, args)))
    takers: dict[int, tuple[torch.Tensor, Any]] = {}
    for index in held:
        leaf: Any = links[index]
        found = nodes.get(id(leaf), [])  # a leaf with several gradients gets their sum
        if len(found) == 1 and index not in unwanted and _can_add(leaf, found[0], occupied):
            takers[index] = leaf, found[0]
    return takers


def _accumulators(ctx: Any) -> dict[int, list[torch.autograd.graph.Node]]:
    """Returns the accumulating nodes after `ctx`, by the id of the leaf: one node per gradient."""
    found: dict[int, list[torch.autograd.graph.Node]] = {}
    for node, _ in ctx.next_functions:
        leaf = compat.leaf_of(node)
        if leaf is not None:
            found.setdefault(id(leaf), []).append(node)
    return found


def _can_add(leaf: torch.Tensor, node: torch.autograd.graph.Node, occupied: Collection[object]) -> bool:
    """Returns whether running `node` now has no visible effect except on `.grad`. `occupied` is memory still read by
    backward."""
    grad = leaf.grad
    return (
        type(grad) is torch.Tensor
        and _has_storage(grad)
        and compat.memory_of(grad) not in occupied
        and _runs_in_stream_order(grad.device)
        and not is_hooked(leaf, node)
        and compat.will_run(node) is True
    )


def _has_storage(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _runs_in_stream_order(device: torch.device) -> bool:
    """Returns whether work started now on a device is ordered with the work of autograd on that device."""
    if device.type == "cuda":
        return torch.cuda.current_stream(device) == torch.cuda.default_stream(device)
    return device.type == "cpu"


def _is_addable(gradient: torch.Tensor, grad: torch.Tensor | None) -> bool:
    """Returns whether autograd would add `gradient` to `grad` without a conversion."""
    if grad is None or gradient.shape != grad.shape:
        return False
    return gradient.dtype == grad.dtype and gradient.device == grad.device
