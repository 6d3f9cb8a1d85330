"""Owns questions about hooks at leaves: whether user hooks can see the gradient of a leaf, and which hooks to skip.

Hooks that tracing registers do not count; they are registered here. `tracer/` decides what hooks mean for a traced
program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from minidynamo import compat
from minidynamo.core.references import Reference
from minidynamo.graph.tensor_hooks import unless_none

Register = Callable[[Callable[..., Any]], RemovableHandle]


class _InternalHooks:
    """Counts the hooks registered here. Torch counts all hooks that were ever registered in the process."""

    count = 0


class _Unhooked:
    """Remembers leaves whose nodes have no hooks, until the user registers a further hook."""

    #: The count of the user's hooks when the leaves were recorded, and the leaves by id.
    known: tuple[int, dict[int, Reference]] = (0, {})

    @classmethod
    def leaves(cls) -> dict[int, Reference]:
        """Returns the known leaves; none after the user has registered a further hook."""
        count = RemovableHandle.next_id - _InternalHooks.count
        known = cls.known
        if known[0] != count or len(known[1]) >= MOST_LEAVES:
            cls.known = known = count, {}
        return known[1]


MOST_LEAVES = 1 << 16
"""The most leaves to remember."""


def register(method: Register, hook: Callable[..., Any]) -> RemovableHandle:
    """Registers an internal hook: `method` is, for example, `node.register_hook`."""
    _InternalHooks.count += 1
    return method(hook)


def user_hooks_exist() -> bool:
    """Returns whether the user has registered any hook in this process, dead or alive."""
    return RemovableHandle.next_id != _InternalHooks.count


def is_hooked(leaf: torch.Tensor, node: torch.autograd.graph.Node) -> bool:
    """Returns whether hooks see the gradient of a leaf, or run after `node` has added it to `.grad`.

    Hooks that C++ code registered after `node` are not seen; autograd calls them without gradients anyway.
    """
    if compat.has_tensor_hooks(leaf):
        return True
    if not user_hooks_exist():
        return False
    unhooked = _Unhooked.leaves()
    known = unhooked.get(id(leaf))
    if known is not None and known() is leaf:
        return False
    if _has_hooks(node.register_prehook) or _has_hooks(node.register_hook):
        return True
    unhooked[id(leaf)] = Reference(leaf)
    return False


def edges_after(node: Any) -> Iterator[tuple[Any, int]]:
    """Yields the edges of a graph's node to inputs, also those of its stages (`runtime/stage_nodes.py`)."""
    pending = [node]
    while pending:
        for edge in pending.pop().next_functions:
            if getattr(edge[0], "is_stage", False):
                pending.append(edge[0])
            else:
                yield edge


def skip_leaf_hooks(
    node: Any, gradients: Iterable[torch.Tensor | None], unvisited: Collection[torch.Tensor | None] = ()
) -> None:
    """Skips hooks of leaves after `node` that would be called without a gradient.

    `gradients` are the arguments or results of the node; if one is None, the hooks of all leaves are skipped where
    there is no gradient. Hooks of leaves in `unvisited` are skipped in any case.
    """
    all_leaves = any(gradient is None for gradient in gradients)
    only = {id(leaf) for leaf in unvisited}
    for function, _ in edges_after(node) if all_leaves or only else ():
        leaf = compat.leaf_of(function)
        if leaf is not None and (all_leaves or id(leaf) in only):
            _skip_none(leaf._backward_hooks)
            if leaf._post_accumulate_grad_hooks:
                _skip_unless_added(leaf._post_accumulate_grad_hooks, function)


def _skip_unless_added(hooks: dict[int, Any], node: torch.autograd.graph.Node) -> None:
    """Skips hooks that run after `node` has added to `.grad` of a leaf, once, if there is no gradient to add."""
    for number, hook in hooks.items():
        if not isinstance(hook, _IfAdded):
            hook = hooks[number] = _IfAdded(hook)
        hook.watch(node)


class _IfAdded:
    """A hook that is skipped once if the node before it gets no gradient."""

    def __init__(self, hook: Any) -> None:
        self.hook = hook
        self.is_idle = False

    def watch(self, node: torch.autograd.graph.Node) -> None:
        def check(gradients: Sequence[torch.Tensor | None]) -> None:
            handle.remove()
            self.is_idle = gradients[0] is None

        handle = register(node.register_prehook, check)

    def __call__(self, leaf: torch.Tensor) -> Any:
        if not self.is_idle:
            return self.hook(leaf)
        self.is_idle = False
        return None


class TensorHooks:
    """The present and future hooks of a living non-leaf tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = Reference(tensor)
        self.known = tensor._backward_hooks

    def skip_none(self) -> None:
        """Skips the hooks when there is no gradient."""
        tensor = self.tensor()
        _skip_none(self.known if tensor is None else tensor._backward_hooks)


def _skip_none(hooks: dict[int, Any] | None) -> None:
    if hooks:
        hooks.update({number: unless_none(hook) for number, hook in hooks.items()})


def _has_hooks(method: Register) -> bool:
    """Returns whether a hook is registered by this method. The list of hooks is only reachable from a handle."""
    handle = register(method, _nothing)
    hooks = handle.hooks_dict_ref()
    handle.remove()
    return bool(hooks)


def _nothing(*_: Any) -> None:
    pass
