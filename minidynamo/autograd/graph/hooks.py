"""Owns the question whether hooks watch what autograd does at a leaf.

Hooks that tracing registers count as none; who registers such a hook does it here. What the user's hooks mean for a
traced program is decided in `tracer/`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from minidynamo import compat
from minidynamo.core.references import Reference
from minidynamo.graph.tensor_hooks import unless_none

Register = Callable[[Callable[..., Any]], RemovableHandle]


class _Ours:
    """How many hooks were registered here. torch counts all that there ever were in the process."""

    count = 0


def register(how: Register, hook: Callable[..., Any]) -> RemovableHandle:
    """Register a hook that is no user's: `how` is a method like `node.register_hook`."""
    _Ours.count += 1
    return how(hook)


def is_hooked(leaf: torch.Tensor, node: torch.autograd.graph.Node) -> bool:
    """Whether hooks see the gradient of a leaf, or run when `node` has added it to `.grad`.

    Hooks that were registered from C++ behind `node` are not seen. They are called without gradients anyway.
    """
    if compat.has_tensor_hooks(leaf):
        return True
    if RemovableHandle.next_id == _Ours.count:  # the user has registered no hook, of any kind, in this process
        return False
    return _is_used(node.register_prehook) or _is_used(node.register_hook)


def spare_leaves(
    node: Any, gradients: Iterable[torch.Tensor | None], unvisited: Collection[torch.Tensor | None] = ()
) -> None:
    """Have no hook of a leaf behind `node` called without a gradient, if some of `gradients`, which it takes or gives,
    are None; in any case none of a leaf in `unvisited`."""
    everyone = any(gradient is None for gradient in gradients)
    only = {id(leaf) for leaf in unvisited}
    for function, _ in node.next_functions if everyone or only else ():
        leaf = compat.leaf_of(function)
        if leaf is not None and (everyone or id(leaf) in only):
            _spare(leaf._backward_hooks)
            if leaf._post_accumulate_grad_hooks:
                _spare_behind(leaf._post_accumulate_grad_hooks, function)


def _spare_behind(hooks: dict[int, Any], node: torch.autograd.graph.Node) -> None:
    """Let hooks of a leaf, which run when `node` has added to its `.grad`, not run this time if there is nothing to
    add."""
    for number, hook in hooks.items():
        if not isinstance(hook, _IfAdded):
            hook = hooks[number] = _IfAdded(hook)
        hook.watch(node)


class _IfAdded:
    """A hook that is left out once where the node it is behind gets no gradient."""

    def __init__(self, hook: Any) -> None:
        self.hook = hook
        self.is_idle = False

    def watch(self, node: torch.autograd.graph.Node) -> None:
        def look(gradients: Sequence[torch.Tensor | None]) -> None:
            handle.remove()
            self.is_idle = gradients[0] is None

        handle = register(node.register_prehook, look)

    def __call__(self, leaf: torch.Tensor) -> Any:
        if not self.is_idle:
            return self.hook(leaf)
        self.is_idle = False
        return None


class Watched:
    """The hooks of a tensor that is no leaf, now and later, as long as it lives."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = Reference(tensor)
        self.known = tensor._backward_hooks

    def spare(self) -> None:
        """Have none of them called with None."""
        tensor = self.tensor()
        _spare(self.known if tensor is None else tensor._backward_hooks)


def _spare(hooks: dict[int, Any] | None) -> None:
    if hooks:
        hooks.update({number: unless_none(hook) for number, hook in hooks.items()})


def _is_used(how: Register) -> bool:
    """Whether a hook is registered in this way. Only a handle leads to the others."""
    handle = register(how, _nothing)
    hooks = handle.hooks_dict_ref()
    handle.remove()
    return bool(hooks)


def _nothing(*_: Any) -> None:
    pass
