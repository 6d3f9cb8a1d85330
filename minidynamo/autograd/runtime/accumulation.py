"""Owns the adding of gradients to `.grad` while a compiled backward runs, so that not all of them live together.

A compiled backward is one node of autograd's graph, whose results autograd takes when it has returned. Eager adds the
gradient of a parameter to what `.grad` holds as soon as it is computed. Here the node that does so for autograd is
called right away, for the leaves with which nobody could tell: all others are returned, and autograd does the rest.
Where autograd adds gradients of several nodes before it adds them to `.grad`, here each is added by itself; so the sum
may be rounded differently. Gradients that nobody asks for are dropped likewise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.autograd.graph.hooks import is_hooked
from minidynamo.graph.boxed import HandOver


def accumulating(
    ctx: Any, links: Sequence[torch.Tensor | None], args: Iterable[Any], unwanted: Collection[int]
) -> HandOver | None:
    """What takes those gradients that can be added to `.grad` at once, and drops those in `unwanted`; None when there
    are none.

    `ctx` is the node whose backward runs, `links` are its inputs, or what stands for them, in the order of the
    gradients. `args` is what the gradients are computed from.
    """
    takers = _takers(ctx, links, args, unwanted)
    if not takers and not unwanted:
        return None

    def take(place: int, gradient: torch.Tensor) -> torch.Tensor | None:
        if place in unwanted:
            return None
        if place not in takers:
            return gradient
        leaf, add = takers[place]
        if not _fits(gradient, leaf.grad):
            return gradient
        add(gradient)
        return None

    return take


def not_asked_for(ctx: Any, links: Sequence[torch.Tensor | None]) -> set[int]:
    """The gradients that nobody asks for in the backward that is running: `autograd.grad(y, [x])` asks for one."""
    if not links or compat.asks_for_all_gradients():
        return set()
    of_leaves = _accumulators(ctx)

    def takes(link: torch.Tensor) -> Any:
        """The node that is called with the gradient."""
        if link.grad_fn is None:
            return next(iter(of_leaves.get(id(link), ())), None)
        return link.grad_fn.next_functions[link.output_nr][0]

    found = ((place, takes(link)) for place, link in enumerate(links) if link is not None)
    return {place for place, node in found if node is not None and compat.will_run(node) is False}


def _takers(
    ctx: Any, links: Sequence[torch.Tensor | None], args: Iterable[Any], unwanted: Collection[int]
) -> dict[int, tuple[torch.Tensor, Any]]:
    """The leaves, with what adds to their `.grad`, by the place of their gradient."""
    held = [place for place, link in enumerate(links) if link is not None and link.is_leaf and link.grad is not None]
    if not held or torch.is_anomaly_enabled():  # which looks at what backward returns
        return {}
    nodes = _accumulators(ctx)
    occupied = set(map(compat.memory_of, filter(_has_storage, args)))
    takers: dict[int, tuple[torch.Tensor, Any]] = {}
    for place in held:
        leaf: Any = links[place]
        found = nodes.get(id(leaf), [])  # a leaf with several gradients gets their sum
        if len(found) == 1 and place not in unwanted and _can_add(leaf, found[0], occupied):
            takers[place] = leaf, found[0]
    return takers


def _accumulators(ctx: Any) -> dict[int, list[torch.autograd.graph.Node]]:
    """The nodes behind `ctx` that add to `.grad`, one for each gradient, by the id of their leaf."""
    found: dict[int, list[torch.autograd.graph.Node]] = {}
    for node, _ in ctx.next_functions:
        leaf = compat.leaf_of(node)
        if leaf is not None:
            found.setdefault(id(leaf), []).append(node)
    return found


def _can_add(leaf: torch.Tensor, node: torch.autograd.graph.Node, occupied: Collection[object]) -> bool:
    """Whether nobody can tell that `node` runs now. `occupied` is memory that backward still reads."""
    grad = leaf.grad
    return (
        type(grad) is torch.Tensor
        and _has_storage(grad)
        and compat.memory_of(grad) not in occupied
        and _in_order(grad.device)
        and not is_hooked(leaf, node)
        and compat.will_run(node) is True
    )


def _has_storage(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _in_order(device: torch.device) -> bool:
    """Whether what runs on a device now is in order with what autograd runs there."""
    if device.type == "cuda":
        return torch.cuda.current_stream(device) == torch.cuda.default_stream(device)
    return device.type == "cpu"


def _fits(gradient: torch.Tensor, grad: torch.Tensor | None) -> bool:
    """Whether autograd would add `gradient` to `grad` as it is."""
    if grad is None or gradient.shape != grad.shape:
        return False
    return gradient.dtype == grad.dtype and gradient.device == grad.device
