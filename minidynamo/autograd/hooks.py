"""Owns the question whether hooks watch what autograd does at a leaf.

Hooks that tracing registers count as none; who registers such a hook does it here. What the user's hooks mean for a
traced program is decided in `tracer/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from minidynamo import compat
from minidynamo.tensor_hooks import hooks_of_leaves, unless_none

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


def tables_of(args: Sequence[Any], places: Iterable[int]) -> list[dict[int, Any]]:
    """The tables of the hooks that the tensors at `places` have."""
    return [table for i in places if (table := args[i]._backward_hooks)]


def spare(node: Any, tangents: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """`tangents`, with which `node` is about to run. No hook of a leaf behind it, or in its `tables`, is called with
    None where no gradient comes for it from those results that have any."""
    if len(tangents) > 1 and any(tangent is None for tangent in tangents):
        for hooks in (*hooks_of_leaves(node), *node.tables):
            hooks.update({number: unless_none(hook) for number, hook in hooks.items()})
    return tangents


def _is_used(how: Register) -> bool:
    """Whether a hook is registered in this way. Only a handle leads to the others."""
    handle = register(how, _nothing)
    hooks = handle.hooks_dict_ref()
    handle.remove()
    return bool(hooks)


def _nothing(*_: Any) -> None:
    pass
