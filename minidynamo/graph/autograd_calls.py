"""Owns the functions of a captured graph that torch's autograd must run itself: new leaves, hooks, gradients, and
replaced memory of tensors.

A compiled graph is split at these calls (`autograd/segments.py`). The tracer decides which calls may be captured.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils.hooks import RemovableHandle

from minidynamo.graph.pytree import nodes_in
from minidynamo.graph.tensor_hooks import refresh_grad_fn


def make_parameter(data: torch.Tensor, requires_grad: bool) -> torch.nn.Parameter:
    """Creates a parameter in the memory of `data`."""
    return torch.nn.Parameter(data, requires_grad)


def require_grad(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """Calls `tensor.requires_grad_(requires_grad)`."""
    return tensor.requires_grad_(requires_grad)


def replace_data(tensor: torch.Tensor, data: torch.Tensor) -> None:
    """Assigns `tensor.data = data`."""
    tensor.data = data


def retain_grad(tensor: torch.Tensor) -> None:
    """Calls `tensor.retain_grad()`."""
    tensor.retain_grad()


class BackwardState(types.SimpleNamespace):
    """The handles of the hooks that one call of a graph has registered: `hook0`, `hook1`, ...

    The residual program creates an empty state for each call, and passes it as the last input.
    """


def reserve_hook(tensor: torch.Tensor, method: str, state: BackwardState, name: str) -> None:
    """Registers a placeholder hook by `tensor.register_hook(...)`, or the named method; `fill_hook` replaces it. The
    handle becomes the attribute `name` of the state."""
    refresh_grad_fn(tensor)
    setattr(state, name, getattr(tensor, method)(_placeholder_hook))


def inlined_hook(tensor: torch.Tensor, body: Callable[..., Any], operands: tuple[torch.Tensor, ...]) -> None:
    """Registers a hook that returns the first result of `body(*operands, gradient)`. A trace of backward contains its
    operations."""
    tensor.register_hook(lambda gradient: body(*operands, gradient)[0])


def reserve_node_hook(tensor: torch.Tensor, method: str, state: BackwardState, name: str) -> None:
    """Registers a placeholder hook on the autograd node of `tensor`, as `reserve_hook` does on a tensor."""
    setattr(state, name, getattr(tensor.grad_fn, method)(_placeholder_hook))


def fill_hook(handle: RemovableHandle, function: Callable[..., Any]) -> None:
    """Replaces the placeholder that `reserve_hook` registered by the program's function."""
    hooks = handle.hooks_dict_ref()
    if hooks is not None and handle.id in hooks:
        hooks[handle.id] = function


def _placeholder_hook(*_: object) -> None:
    """Does nothing: the hook until the end of the program's frame, during which no backward runs."""


gradients = torch.autograd.grad

_EAGER_BACKWARD = "has_eager_backward"
_FUNCTION = "autograd_function"


def with_eager_backward(function: Callable[..., Any], operator: object = None) -> Callable[..., Any]:
    """Marks a function of a graph, which calls `operator` if given: a compiled graph is split at its calls, and
    autograd runs its backward eagerly.
    """
    vars(function)[_EAGER_BACKWARD] = operator
    return function


def mark_custom_function(function: Callable[..., Any], cls: type[Any]) -> Callable[..., Any]:
    """Marks a function of a graph that calls `cls.apply`."""
    vars(function)[_FUNCTION] = cls
    return function


def custom_function_of(node: fx.Node) -> type[Any] | None:
    """Returns the custom Function that computes the node, or the tuple that the node is an item of."""
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    cls: type[Any] | None = vars(node.target).get(_FUNCTION) if isinstance(node.target, types.FunctionType) else None
    return cls


def eager_operator(function: object) -> object:
    """Returns the operator that a function marked by `with_eager_backward` calls; None for other functions."""
    return vars(function).get(_EAGER_BACKWARD) if isinstance(function, types.FunctionType) else None


# The functions, each with the position of the arguments whose gradients the call uses.
_WATCHED_ARGUMENT: dict[Callable[..., Any], int | None] = {
    make_parameter: None,
    require_grad: None,
    replace_data: None,
    retain_grad: 0,
    reserve_hook: 0,
    reserve_node_hook: 0,
    gradients: 1,
}


def is_autograd_call(node: fx.Node) -> bool:
    """Returns whether autograd must see the call of the node."""
    if node.op != "call_function":
        return False
    is_marked = isinstance(node.target, types.FunctionType) and _EAGER_BACKWARD in vars(node.target)
    return is_marked or node.target in _WATCHED_ARGUMENT


def registers_hook(node: fx.Node) -> bool:
    """Returns whether the node registers a hook whose function the program passes after the graph."""
    return node.target in (reserve_hook, reserve_node_hook)


def returns_several(node: fx.Node) -> bool:
    """Returns whether the result of such a call is a tuple or list, as opposed to a tensor that is subscripted."""
    return isinstance(node.meta.get("example_value"), (tuple, list))


def differentiates_again(node: fx.Node) -> bool:
    """Returns whether the node computes gradients that may be differentiated again."""
    return node.target is gradients and bool(node.kwargs.get("create_graph"))


def watched_tensors(node: fx.Node) -> list[fx.Node]:
    """Lists the tensors whose gradients the call uses: autograd must see every computation from them."""
    position = _WATCHED_ARGUMENT.get(node.target) if node.op == "call_function" else None  # type: ignore[arg-type]
    return [] if position is None else nodes_in(node.args[position])
