"""Owns the functions of a captured graph that torch's autograd must see as they are: new leaves, hooks, gradients,
and tensors that are given other memory.

A graph that is compiled is cut at them (`autograd/segments.py`). What may be captured is the tracer's to decide.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils.hooks import RemovableHandle

from minidynamo.graph.pytree import nodes_in
from minidynamo.graph.tensor_hooks import renew_node


def make_parameter(data: torch.Tensor, requires_grad: bool) -> torch.nn.Parameter:
    """A parameter in the memory of `data`."""
    return torch.nn.Parameter(data, requires_grad)


def require_grad(tensor: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """`tensor.requires_grad_(requires_grad)`."""
    return tensor.requires_grad_(requires_grad)


def replace_data(tensor: torch.Tensor, data: torch.Tensor) -> None:
    """`tensor.data = data`."""
    tensor.data = data


def retain_grad(tensor: torch.Tensor) -> None:
    """`tensor.retain_grad()`."""
    tensor.retain_grad()


def plant_hook(tensor: torch.Tensor, method: str) -> RemovableHandle:
    """`tensor.register_hook(...)`, or the method of that name, for a function that is put in its place later."""
    renew_node(tensor)
    handle: RemovableHandle = getattr(tensor, method)(_nothing_yet)
    return handle


def fill_hook(handle: RemovableHandle, function: Callable[..., Any]) -> None:
    """Put the program's function where `plant_hook` has left a place for it."""
    hooks = handle.hooks_dict_ref()
    if hooks is not None and handle.id in hooks:
        hooks[handle.id] = function


def _nothing_yet(_: torch.Tensor) -> None:
    """The hook between the graph's call and the end of the program's frame, in which nothing is differentiated."""


gradients = torch.autograd.grad

_EAGER_BACKWARD = "has_eager_backward"


def with_eager_backward(function: Callable[..., Any], operator: object = None) -> Callable[..., Any]:
    """Mark a function of a graph, which calls `operator` if that is given: a compiled graph is cut at its calls, and
    autograd runs its backward eagerly."""
    vars(function)[_EAGER_BACKWARD] = operator
    return function


def eager_operator(function: object) -> object:
    """Return the operator that a function marked by `with_eager_backward` calls; None for any other function."""
    return vars(function).get(_EAGER_BACKWARD) if isinstance(function, types.FunctionType) else None


# The functions, each with the positions of the arguments whose gradients are looked at.
_LOOKS_AT: dict[Callable[..., Any], int | None] = {
    make_parameter: None,
    require_grad: None,
    replace_data: None,
    retain_grad: 0,
    plant_hook: 0,
    gradients: 1,
}


def is_autograd_call(node: fx.Node) -> bool:
    """Whether autograd must see the call that the node makes."""
    if node.op != "call_function":
        return False
    is_marked = isinstance(node.target, types.FunctionType) and _EAGER_BACKWARD in vars(node.target)
    return is_marked or node.target in _LOOKS_AT


def gives_several(node: fx.Node) -> bool:
    """Whether the result of such a call is a tuple, not a tensor that may be subscripted itself."""
    return isinstance(node.meta.get("example_value"), (tuple, list))


def differentiates_again(node: fx.Node) -> bool:
    """Whether the node computes gradients that may be differentiated themselves."""
    return node.target is gradients and bool(node.kwargs.get("create_graph"))


def watched_tensors(node: fx.Node) -> list[fx.Node]:
    """The tensors whose gradients such a call looks at: what is computed from one must be seen to be, by autograd."""
    position = _LOOKS_AT.get(node.target) if node.op == "call_function" else None  # type: ignore[arg-type]
    return [] if position is None else nodes_in(node.args[position])
