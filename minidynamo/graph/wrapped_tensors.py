"""Owns calls of torch functions that take a tensor with `__torch_dispatch__`, such as a quantized weight of torchao, as
functions of a captured graph.

The graph holds plain tensors: the node keeps a weak reference to the instance, whose class computes the call in each
call of the graph. A compiled graph is split at the node. During tracing the class computes with fake tensors and a copy
of the instance: what it stores in the instance must not outlive the trace.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from minidynamo import compat
from minidynamo.graph.autograd_calls import with_eager_backward


def can_be_copied(cls: type) -> bool:
    """Returns whether instances of a class of tensors consist of other tensors, by which they can be made."""
    return hasattr(cls, "__tensor_flatten__") and hasattr(cls, "__tensor_unflatten__")


def _copy(tensor: Any) -> Any:
    """Returns an instance with the same inner tensors."""
    names, context = tensor.__tensor_flatten__()
    parts = {name: getattr(tensor, name) for name in names}
    parts = {name: _copy(part) if can_be_copied(type(part)) else part for name, part in parts.items()}
    made = type(tensor).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())
    return made if made.requires_grad == tensor.requires_grad else made.requires_grad_(tensor.requires_grad)


def wrapped_call(function: Callable[..., Any], instances: Mapping[int | str, torch.Tensor]) -> Callable[..., Any]:
    """Returns a function of a graph that calls `function` with its own arguments and the `instances`, by position or
    keyword.

    On fake tensors it returns None if the result is no plain tensor: then the call cannot be a node.
    """
    references = {key: weakref.ref(tensor) for key, tensor in instances.items()}

    def call(*args: Any, **kwargs: Any) -> Any:
        on_fakes = compat.are_fakes_running()
        found = {key: _copy(instance()) if on_fakes else instance() for key, instance in references.items()}
        rest, count = iter(args), len(args) + sum(isinstance(key, int) for key in found)
        merged = [found[position] if position in found else next(rest) for position in range(count)]
        named = {key: instance for key, instance in found.items() if isinstance(key, str)}
        result = function(*merged, **kwargs, **named)
        is_plain = not on_fakes or type(result) is compat.FakeTensor
        return result if is_plain else None

    call.__name__ = call.__qualname__ = getattr(function, "__name__", "call")
    return with_eager_backward(call)
