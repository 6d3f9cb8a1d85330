"""Owns the tables of hooks of tensors, and what the backward that is running is asked for: who watches which gradients.

Autograd has one node for a whole compiled graph. It calls the hooks of a result or an input with None where that node
runs and no gradient comes; in eager each has a node of its own then, which is not called.
"""

from __future__ import annotations

import collections
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.core.references import Reference


def unless_none(hook: Any) -> Any:
    """A hook of a tensor, which is not called without a gradient. Those of torch itself count how often they are
    called, by the nodes that are."""
    return hook if _expects_none(hook) else UnlessNone(hook)


def _expects_none(hook: Any) -> bool:
    """Whether a hook is made for calls without a gradient, too: ours, and those of torch itself."""
    return isinstance(hook, UnlessNone) or getattr(hook, "__module__", None) == torch.autograd.graph.__name__


class UnlessNone:
    """A hook of a tensor that is not called without a gradient."""

    def __init__(self, hook: Any) -> None:
        self.hook = hook

    def __call__(self, given: torch.Tensor | None) -> Any:
        return None if given is None else self.hook(given)


class _HooksOfResult(collections.OrderedDict[int, Any]):
    """The hooks of one of several results of a node, each as `of_result` makes it."""

    def __init__(self, of_result: Callable[[Any], Any], hooks: Mapping[int, Any] = types.MappingProxyType({})) -> None:
        super().__init__()
        self.of_result = of_result
        self.update(hooks)

    def __setitem__(self, number: int, hook: Any) -> None:
        super().__setitem__(number, hook if _expects_none(hook) else self.of_result(hook))


def notice_hooks(
    function: type[torch.autograd.Function],
    notice: Callable[[Any, int | None, Mapping[int, Any]], None],
    of_result: Callable[[Any, Any, int], UnlessNone] = lambda hook, node, number: UnlessNone(hook),
) -> None:
    """Have `notice` called whenever hooks are registered on a node of `function`: with the node, the number of the
    result that they are for, None for the node itself, and the mapping that has those that there are. One for a result
    is called as `of_result` makes it, given the hook, the node and that number."""
    kind: Any = compat.node_type(function)
    of_results, before, behind = kind._register_hook_dict, kind.register_prehook, kind.register_hook

    def register_hook_dict(node: Any, tensor: torch.Tensor) -> None:
        reference, number = Reference(node), tensor.output_nr

        def made(hook: Any) -> Any:
            alive = reference()
            return hook if alive is None else of_result(hook, alive, number)  # nobody runs those of what is gone

        tensor._backward_hooks = _HooksOfResult(made, tensor._backward_hooks or {})
        of_results(node, tensor)
        notice(node, tensor.output_nr, tensor._backward_hooks)

    def register(how: Any, node: Any, hook: Any) -> Any:
        handle = how(node, hook)
        hooks = handle.hooks_dict_ref()
        notice(node, None, {} if hooks is None else hooks)
        return handle

    kind._register_hook_dict = register_hook_dict
    kind.register_prehook = lambda node, hook: register(before, node, hook)
    kind.register_hook = lambda node, hook: register(behind, node, hook)


def renew_node(tensor: torch.Tensor) -> None:
    """Have torch make the node of a view whose memory was written to, which it puts off until it is asked for. A hook
    that is registered before would be dropped, and torch would crash."""
    if tensor._is_view():
        _ = tensor.grad_fn


def hooks_to_come(tensor: torch.Tensor, of_result: Callable[[Any], UnlessNone] = UnlessNone) -> Mapping[int, Any]:
    """What will have the hooks that are registered on `tensor`, which is no leaf, as long as nobody writes to it, each
    as `of_result` makes it. What has them already stays."""
    node: Any = tensor.grad_fn  # which is made anew, with no hooks, if its base was written to
    if tensor._backward_hooks is None:
        tensor._backward_hooks = _HooksOfResult(of_result)
        node._register_hook_dict(tensor)
    hooks: Mapping[int, Any] = tensor._backward_hooks
    return hooks


def may_ask_for(tensor: torch.Tensor) -> bool:
    """Whether the backward that is running, which is not for all leaves, may be asked for what arrives at `tensor`."""
    asked = _asked_gradients()
    edge = (tensor.grad_fn, tensor.output_nr)
    return asked is None or any(one is tensor or (tensor.grad_fn and _edge_of(one) == edge) for one in asked)


def asked_edges() -> list[tuple[Any, int]] | None:
    """The nodes, None for that of a leaf, with the numbers of their results that the backward which is running may be
    asked for; None where that cannot be found out."""
    asked = _asked_gradients()
    return None if asked is None else [*map(_edge_of, asked)]


def _edge_of(asked: Any) -> tuple[Any, int]:
    return (asked.grad_fn if isinstance(asked, torch.Tensor) else asked.node), asked.output_nr


def _asked_gradients() -> list[Any] | None:
    """The tensors, and edges of autograd's graph, that the backward which is running is asked for, and maybe those of
    others that run meanwhile; None where that cannot be found out. Autograd calls nodes in the thread that has called
    it, or, of other devices, in threads of its own."""
    for frames in ([sys._getframe(1)], list(sys._current_frames().values())):
        found = [asked for frame in frames for asked in _asked_in(frame)]
        if found:
            return found
    return None


def _asked_in(frame: types.FrameType | None) -> Sequence[Any]:
    while frame is not None:
        if frame.f_code is compat.RUNS_BACKWARD:
            inputs: Sequence[Any] = frame.f_locals["args"][3]
            return inputs
        frame = frame.f_back
    return ()
