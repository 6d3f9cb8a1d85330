"""Owns calls of torch functions that take a tensor with `__torch_dispatch__`, such as a quantized weight of torchao, as
functions of a captured graph.

The graph holds plain tensors: the node keeps a weak reference to the other one, whose class computes the call, in each
call of the graph. A compiled graph is split at the node.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from minidynamo import compat
from minidynamo.graph.autograd_calls import with_eager_backward


def wrapped_call(function: Callable[..., Any], wrapped: Mapping[int | str, torch.Tensor]) -> Callable[..., Any]:
    """Returns a function of a graph that calls `function` with its own arguments and the `wrapped` ones, by position or
    keyword.

    On fake tensors it returns None if the result is no plain tensor.
    """
    owners = {key: weakref.ref(tensor) for key, tensor in wrapped.items()}

    def call(*args: Any, **kwargs: Any) -> Any:
        rest, count = iter(args), len(args) + sum(isinstance(key, int) for key in owners)
        merged = [owners[position]() if position in owners else next(rest) for position in range(count)]
        named = {key: owner() for key, owner in owners.items() if isinstance(key, str)}
        result = function(*merged, **kwargs, **named)
        is_plain = not compat.are_fakes_running() or type(result) is compat.FakeTensor
        return result if is_plain else None

    call.__name__ = call.__qualname__ = getattr(function, "__name__", "call")
    return with_eager_backward(call)
