"""Owns private names of autograd's graph, and questions about the backward that is running.

Whose hooks those are that run, and what they mean, is not known here (`autograd/graph/hooks.py`,
`graph/tensor_hooks.py`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import typing

import torch
import torch.utils.checkpoint

# What the module of forward-mode AD holds: the level that is open is a global of it, -1 without one.
forward_ad = vars(torch.autograd.forward_ad)

# Whether autograd can hand the gradients to a Function's backward in one list, which it may empty.
HAS_BOXED_GRADIENTS = hasattr(torch.autograd.Function, "boxed_grads_call")

# What a Function without a `setup_context` of its own has.
default_setup_context = torch.autograd.function._SingleLevelFunction.setup_context

# Whether the backward that is running leaves saved tensors for another one.
retains_graph: typing.Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph

# The pack and unpack hooks that saved tensors go through now, or None.
_saved_tensor_hooks = torch._C._autograd._top_saved_tensors_default_hooks


def check_reentrant_backward() -> None:
    """Raise what a reentrant checkpoint raises when the backward that is running is for some gradients only."""
    if not asks_for_all_gradients():
        torch.utils.checkpoint.CheckpointFunction.backward(None)


def raw_apply(function: type[torch.autograd.Function]) -> typing.Callable[..., typing.Any]:
    """`function.apply` without its check for functorch transforms, which a compiled graph never runs under."""
    apply: typing.Callable[..., typing.Any] = super(torch.autograd.Function, function).apply
    return apply


def has_saved_tensor_hooks() -> bool:
    """Whether what autograd saves now goes through the user's hooks."""
    return _saved_tensor_hooks(False) is not None


def saved_tensor_hooks() -> tuple[typing.Any, typing.Any] | None:
    """The pack and unpack hooks that what autograd saves now goes through."""
    return _saved_tensor_hooks(False)


@contextlib.contextmanager
def no_saved_tensor_hooks() -> typing.Iterator[None]:
    """Inside, what autograd saves goes through no hooks but those that are opened there."""
    closed = []
    try:
        while (hooks := _saved_tensor_hooks(False)) is not None:
            torch._C._autograd._pop_saved_tensors_default_hooks()
            closed.append(hooks)
        yield
    finally:
        for hooks in reversed(closed):
            torch._C._autograd._push_saved_tensors_default_hooks(*hooks)


_NAMES = ["Ceil", "Clone", "Floor", "Frac", "Neg", "Round", "Sign", "Trunc"]
_SAVING_NOTHING = tuple(f"Foreach{name}Backward" for name in _NAMES)
"""Gradient functions of operations on lists that backward may run a second time."""


def name_of(function: torch.autograd.graph.Node) -> str:
    """What a gradient function is called. One that is made of Python's does not tell once it is done, in torch 2.11."""
    is_python = isinstance(function, torch.autograd.function.BackwardCFunction)
    return type(function).__name__ if is_python else function.name()


def saved_by(function: torch.autograd.graph.Node) -> list[torch.Tensor]:
    """The tensors that a gradient function has saved. Numbers are not read: that would fix those that are symbols."""
    saved = [getattr(function, name.removeprefix("_raw"), None) for name in _saved_names(type(function))]
    return [value for value in saved if isinstance(value, torch.Tensor)]


def runs_once(function: torch.autograd.graph.Node) -> bool:
    """Whether backward frees what a gradient function needs: what it has saved, or the function of a written part.
    Those of operations on lists do not tell what they save."""
    name = name_of(function)
    on_lists = name.startswith("Foreach") and not name.startswith(_SAVING_NOTHING)
    return on_lists or name == "torch::autograd::CopySlices" or bool(saved_by(function))


@functools.cache
def _saved_names(cls: typing.Hashable) -> list[str]:
    return [name for name in dir(cls) if name.startswith("_raw_saved_")]


def kept_by(function: typing.Any) -> list[typing.Any]:
    """What Python can see of what a gradient function holds, besides others of its kind. No hook runs."""
    kind: typing.Any = type(function)
    kept = gc.get_referents(function)
    for name in _saved_names(kind):
        saved = _unless_freed(function, name)
        if isinstance(saved, tuple):
            kept += [_unless_freed(each, "data") for each in saved]
        else:
            kept.append(_unless_freed(saved, "data"))
    if _has_leaf(kind):
        kept.append(function.variable)
    return kept


@functools.cache
def _has_leaf(cls: typing.Hashable) -> bool:
    return hasattr(cls, "variable")


def _unless_freed(owner: object, name: str) -> typing.Any:
    """An attribute of what autograd keeps; None where there is none, or when backward has freed it."""
    try:
        return getattr(owner, name)
    except (AttributeError, RuntimeError):
        return None


def leaf_of(node: torch.autograd.graph.Node | None) -> torch.Tensor | None:
    """The leaf to whose `.grad` a node adds what it is called with; None for another node."""
    leaf: torch.Tensor | None = getattr(node, "variable", None)
    return leaf


def function_of(tensor: torch.Tensor) -> torch.autograd.graph.Node | None:
    """`tensor.grad_fn`; None where torch does not tell it."""
    return tensor.grad_fn if tells_history(tensor) else None


def tells_history(tensor: torch.Tensor) -> bool:
    """Whether torch tells what made a tensor, and whether it is a leaf. Of a view from inside `no_grad` whose base was
    written to outside of it since, it raises an error instead."""
    try:
        tensor.is_leaf  # noqa: B018 (which raises it)
    except RuntimeError:
        return False
    return True


def will_run(node: torch.autograd.graph.Node) -> bool | None:
    """Whether the backward that is running will run a node; None for one that adds to `.grad`, where somebody has asked
    for what it would be called with instead."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:
        return None


# The number of the backward that is running.
current_backward: typing.Callable[[], int] = torch._C._current_graph_task_id


def node_type(function: type[torch.autograd.Function]) -> type:
    """The type of the gradient functions that a custom function makes."""
    kind: type = function._backward_cls
    return kind


def asks_for_all_gradients() -> bool:
    """Whether the backward that is running is for all leaves, not for some tensors."""
    return bool(torch.autograd._is_checkpoint_valid())


# The code of the function of torch that calls autograd; the fourth of its `args` is what gradients are asked for.
RUNS_BACKWARD = torch.autograd.graph._engine_run_backward.__code__


def has_tensor_hooks(leaf: torch.Tensor) -> bool:
    """Whether hooks of the tensor see its gradient, or run when it was added to `.grad`."""
    return bool(leaf._backward_hooks or leaf._post_accumulate_grad_hooks)
