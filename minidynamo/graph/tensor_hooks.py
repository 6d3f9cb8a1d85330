"""Owns the tables of tensor hooks, and the requested gradients of the running backward.

Autograd has one node for a whole compiled graph. The hooks of a result or an input receive None if the node runs
without a gradient for it. In eager each result has a separate node, which then does not run.
"""

from __future__ import annotations

import collections
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from minidynamo import compat
from minidynamo.core.references import Reference


def unless_none(hook: Any) -> Any:
    """Returns a tensor hook that is not called without a gradient. torch's own hooks stay: they count calls per
    node.
    """
    return hook if _accepts_none(hook) else UnlessNone(hook)


def _accepts_none(hook: Any) -> bool:
    """Returns whether a hook accepts None as gradient: ours, and torch's own."""
    return isinstance(hook, UnlessNone) or getattr(hook, "__module__", None) == torch.autograd.graph.__name__


class UnlessNone:
    """A tensor hook that is not called without a gradient."""

    def __init__(self, hook: Any) -> None:
        self.hook = hook

    def __call__(self, gradient: torch.Tensor | None) -> Any:
        return None if gradient is None else self.hook(gradient)


class _HooksOfResult(collections.OrderedDict[int, Any]):
    """The hooks of one of several results of a node, each wrapped by `wrap`."""

    def __init__(self, wrap: Callable[[Any], Any], hooks: Mapping[int, Any] = types.MappingProxyType({})) -> None:
        super().__init__()
        self.wrap = wrap
        self.update(hooks)

    def __setitem__(self, number: int, hook: Any) -> None:
        super().__setitem__(number, hook if _accepts_none(hook) else self.wrap(hook))


def notice_hooks(
    function: type[torch.autograd.Function],
    notice: Callable[[Any, int | None, Mapping[int, Any]], None],
    wrap: Callable[[Any, Any, int], UnlessNone] = lambda hook, node, number: UnlessNone(hook),
) -> None:
    """Calls `notice(node, number, hooks)` whenever hooks are registered on a node of `function`.

    `number` is the index of the hooked result, or None for hooks of the node itself; `hooks` maps hook ids to hooks. A
    hook of a result is replaced by `wrap(hook, node, number)`.
    """
    kind: Any = compat.node_type(function)
    of_results, before, after = kind._register_hook_dict, kind.register_prehook, kind.register_hook

    def register_hook_dict(node: Any, tensor: torch.Tensor) -> None:
        reference, number = Reference(node), tensor.output_nr

        def wrapped(hook: Any) -> Any:
            alive = reference()
            return hook if alive is None else wrap(hook, alive, number)  # hooks of a dead node never run

        tensor._backward_hooks = _HooksOfResult(wrapped, tensor._backward_hooks or {})
        of_results(node, tensor)
        notice(node, tensor.output_nr, tensor._backward_hooks)

    def register(method: Any, node: Any, hook: Any) -> Any:
        handle = method(node, hook)
        hooks = handle.hooks_dict_ref()
        notice(node, None, {} if hooks is None else hooks)
        return handle

    kind._register_hook_dict = register_hook_dict
    kind.register_prehook = lambda node, hook: register(before, node, hook)
    kind.register_hook = lambda node, hook: register(after, node, hook)


def refresh_grad_fn(tensor: torch.Tensor) -> None:
    """Makes torch create the node of a view after a write to its memory; torch otherwise delays the creation. A hook
    registered earlier would be dropped, and torch would crash.
    """
    if tensor._is_view():
        _ = tensor.grad_fn


def hook_table(tensor: torch.Tensor, wrap: Callable[[Any], UnlessNone] = UnlessNone) -> Mapping[int, Any]:
    """Returns the table of hooks of a non-leaf `tensor`, valid until its next write. An existing table is
    kept; in a new table, hooks are wrapped by `wrap`.
    """
    node: Any = tensor.grad_fn  # created again, without hooks, if the base was written
    if tensor._backward_hooks is None:
        tensor._backward_hooks = _HooksOfResult(wrap)
        node._register_hook_dict(tensor)
    hooks: Mapping[int, Any] = tensor._backward_hooks
    return hooks


def may_request(tensor: torch.Tensor) -> bool:
    """Returns whether the running backward, which does not run for all leaves, may request the gradient of `tensor`."""
    requested = _requested_gradients()
    edge = (tensor.grad_fn, tensor.output_nr)
    return requested is None or any(each is tensor or (tensor.grad_fn and _edge_of(each) == edge) for each in requested)


def requested_edges() -> list[tuple[Any, int]] | None:
    """Lists the requested edges of the running backward: (node, or None for a leaf, and result number). None if
    unknown.
    """
    requested = _requested_gradients()
    return None if requested is None else [*map(_edge_of, requested)]


def _edge_of(requested: Any) -> tuple[Any, int]:
    return (requested.grad_fn if isinstance(requested, torch.Tensor) else requested.node), requested.output_nr


def _requested_gradients() -> list[Any] | None:
    """Lists the tensors and edges whose gradients the running backward must return, maybe with those of concurrent
    backwards; None if unknown. Autograd runs nodes in the thread of the caller, or, for other devices, in separate
    threads.
    """
    for frames in ([sys._getframe(1)], list(sys._current_frames().values())):
        backwards = [backward for backward in map(compat.running_backward, frames) if backward is not None]
        if backwards:
            return [gradient for _, requested in backwards for gradient in requested]
    return None
