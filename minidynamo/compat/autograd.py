"""Owns private names of autograd's graph, of torch.func's transforms and of batched tensors, and questions about the
running backward.

The meaning of hooks is defined elsewhere (`autograd/graph/hooks.py`, `graph/tensor_hooks.py`), that of transforms in
`graph/higher_order.py`.
"""

from __future__ import annotations

import contextlib
import functools
import typing

import torch
import torch.utils.checkpoint

# Globals of the module of forward-mode AD; `_current_level` is the open level, -1 without one.
forward_ad = vars(torch.autograd.forward_ad)

# The `setup_context` of a Function that defines none.
default_setup_context = torch.autograd.function._SingleLevelFunction.setup_context

# Returns whether the running backward keeps saved tensors for a further backward.
retains_graph: typing.Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph

# Returns the pack and unpack hooks in force, or None.
top_saved_tensor_hooks: typing.Callable[[bool], tuple[typing.Any, typing.Any] | None] = (
    torch._C._autograd._top_saved_tensors_default_hooks
)

# Returns whether the running backward computes the gradients of all leaves.
runs_for_all_leaves: typing.Callable[[], bool] = torch.autograd.Variable._execution_engine.is_checkpoint_valid


def check_reentrant_backward() -> None:
    """Raises the error of a reentrant checkpoint if the running backward computes only some gradients."""
    if not runs_for_all_leaves():
        torch.utils.checkpoint.CheckpointFunction.backward(None)


def boxed(function: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
    """Returns a copy of a Function for which torch passes the gradients in one list, where torch can. Compiled autograd
    calls the backward of the original, with one argument per gradient.
    """
    subclass: typing.Any = type(function.__name__, (function,), {"boxed_grads_call": True, "__doc__": function.__doc__})
    kind: typing.Any = node_type(subclass)
    kind._forward_cls = function
    return subclass  # type: ignore[no-any-return]


def raw_apply(function: type[torch.autograd.Function]) -> typing.Callable[..., typing.Any]:
    """Returns `function.apply` without the check for functorch transforms, under which no compiled graph runs."""
    apply: typing.Callable[..., typing.Any] = super(torch.autograd.Function, function).apply
    return apply


def has_saved_tensor_hooks() -> bool:
    """Returns whether the user's hooks apply to tensors that autograd saves now."""
    return top_saved_tensor_hooks(False) is not None


@contextlib.contextmanager
def no_saved_tensor_hooks() -> typing.Iterator[None]:
    """Disables hooks for tensors that autograd saves inside the block, except hooks opened in the block."""
    closed = []
    try:
        while (hooks := top_saved_tensor_hooks(False)) is not None:
            torch._C._autograd._pop_saved_tensors_default_hooks()
            closed.append(hooks)
        yield
    finally:
        for hooks in reversed(closed):
            torch._C._autograd._push_saved_tensors_default_hooks(*hooks)


_NAMES = ["Ceil", "Clone", "Floor", "Frac", "Neg", "Round", "Sign", "Trunc"]
_SAVING_NOTHING = tuple(f"Foreach{name}Backward" for name in _NAMES)
"""Gradient functions of operations on lists that backward may run twice."""


def name_of(function: torch.autograd.graph.Node) -> str:
    """Returns the name of a gradient function. In torch 2.11 a Python function no longer has `name()` after it has
    run.
    """
    is_python = isinstance(function, torch.autograd.function.BackwardCFunction)
    return type(function).__name__ if is_python else function.name()


def saved_by(function: torch.autograd.graph.Node) -> list[torch.Tensor]:
    """Lists the saved tensors of a gradient function. Numbers are not read: a read would specialize symbols."""
    saved = [getattr(function, name.removeprefix("_raw"), None) for name in _saved_names(type(function))]
    return [value for value in saved if isinstance(value, torch.Tensor)]


def runs_once(function: torch.autograd.graph.Node) -> bool:
    """Returns whether backward frees data of a gradient function: saved tensors, or the function inside CopySlices.
    Functions of operations on lists do not expose their saved tensors.
    """
    name = name_of(function)
    on_lists = name.startswith("Foreach") and not name.startswith(_SAVING_NOTHING)
    return on_lists or name == "torch::autograd::CopySlices" or bool(saved_by(function))


@functools.cache
def _saved_names(cls: typing.Hashable) -> list[str]:
    return [name for name in dir(cls) if name.startswith("_raw_saved_")]


# The type of the nodes that accumulate into `.grad` of a leaf.
AccumulateGrad: typing.Any = torch._C._functions.AccumulateGrad


def leaf_of(node: torch.autograd.graph.Node | None) -> torch.Tensor | None:
    """Returns the leaf whose `.grad` a node accumulates into; None for other nodes."""
    leaf: torch.Tensor | None = getattr(node, "variable", None)
    return leaf


def function_of(tensor: torch.Tensor) -> torch.autograd.graph.Node | None:
    """Returns `tensor.grad_fn`; None if torch raises."""
    return tensor.grad_fn if knows_history(tensor) else None


def knows_history(tensor: torch.Tensor) -> bool:
    """Returns whether torch knows the gradient function of a tensor, and whether it is a leaf. Otherwise torch raises:
    for a view made under `no_grad`, after a write to the base outside of `no_grad`.
    """
    try:
        tensor.is_leaf  # noqa: B018 (the read raises the error)
    except RuntimeError:
        return False
    return True


def will_run(node: torch.autograd.graph.Node) -> bool | None:
    """Returns whether the running backward will run a node; None if the node accumulates into `.grad`, and the gradient
    was requested instead.
    """
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:
        return None


# Returns the number of the running backward.
current_backward: typing.Callable[[], int] = torch._C._current_graph_task_id


def node_type(function: type[torch.autograd.Function]) -> type:
    """Returns the type of a custom Function's gradient functions."""
    kind: type = function._backward_cls
    return kind


def has_tensor_hooks(leaf: torch.Tensor) -> bool:
    """Returns whether hooks of the tensor receive its gradient, or run after accumulation into `.grad`."""
    return bool(leaf._backward_hooks or leaf._post_accumulate_grad_hooks)


# Transforms and batched tensors

_functorch = torch._C._functorch
_is_old_batch = _functorch.is_legacy_batchedtensor

# Returns the running transform of torch.func (vmap, grad, jvp), or None.
running_transform = _functorch.peek_interpreter_stack
are_transforms_active = torch._C._are_functorch_transforms_active

# Hides enclosing transforms, such as vmap, from the code inside.
without_transforms = torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack
is_functorch_wrapped = _functorch.is_functorch_wrapped_tensor


def is_batched(value: torch.Tensor) -> bool:
    """Returns whether `value` is a batched tensor (`is_grads_batched=True`, vmap)."""
    return bool(_functorch.is_batchedtensor(value) or _is_old_batch(value))


def any_is_batched(values: typing.Sequence[torch.Tensor]) -> bool:
    """Returns whether a tensor is batched, without a call in Python for each."""
    return any(map(_functorch.is_batchedtensor, values)) or any(map(_is_old_batch, values))


def batch_level(value: torch.Tensor) -> int | None:
    """Returns the level of the innermost batch around the code that `value` belongs to; None if it is not batched.
    Levels of `is_grads_batched` are below 0.
    """
    if _functorch.is_batchedtensor(value):
        return int(_functorch.maybe_get_level(value))
    if not _is_old_batch(value):
        return None
    inner = (-n for n in range(1, 64) if not _is_old_batch(torch._remove_batch_dim(value, n, 1, 0)))
    return next(inner)


def unbatched(value: torch.Tensor, level: int) -> torch.Tensor:
    """Returns the whole batch, with the batch dimension first."""
    result: torch.Tensor
    if level < 0:
        result = torch._remove_batch_dim(value, -level, 1, 0)
    else:
        result = _functorch.get_unwrapped(value).movedim(_functorch.maybe_get_bdim(value), 0)
    return result


def batched(value: torch.Tensor, level: int) -> torch.Tensor:
    """Inverts `unbatched`."""
    result: torch.Tensor
    if level < 0:
        result = torch._add_batch_dim(value, 0, -level)
    else:
        result = _functorch._add_batch_dim(value, 0, level)
    return result
