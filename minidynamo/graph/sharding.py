"""Owns the hooks of modules that `fully_shard` has sharded as functions of a captured graph.

FSDP gathers the parameters of a module before its forward, frees them after it, and prepares backward in both hooks.
A compiled graph is split at the two calls, which run FSDP's own code. The first returns the gathered parameters, so the
graph reads no parameter from a module. The tracer's part is in `tracer/handlers/sharding.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from minidynamo import compat
from minidynamo.graph.collectives import communicates


def before_forward(state: Any, facts: compat.ShardingFacts) -> Callable[..., list[torch.Tensor]]:
    """Returns a function of a graph: it takes the tensors among the arguments of the module with this state, and
    returns the tensors for its forward and the gathered parameters.
    """
    owner = weakref.ref(state)

    def fsdp_pre_forward(*args: Any) -> list[torch.Tensor]:
        tensors = args[:-1]
        if compat.are_fakes_running():
            return [*_prepared(tensors, facts.cast), *map(_gathered, facts.parameters)]
        state: Any = owner()
        changed, _ = state._pre_forward(state._modules[0], tensors, {})
        return [*changed, *compat.gathered_parameters(state)]

    return communicates(fsdp_pre_forward)


def after_forward(state: Any, facts: compat.ShardingFacts) -> Callable[..., list[torch.Tensor]]:
    """Returns a function of a graph: it takes the tensors among the results of forward, and returns those of the
    module."""
    owner = weakref.ref(state)

    def fsdp_post_forward(*args: Any) -> list[torch.Tensor]:
        tensors = args[:-1]
        if compat.are_fakes_running():
            return [_converted(tensor, facts.output) for tensor in tensors]
        state: Any = owner()
        return [*state._post_forward(state._modules[0], (), tensors)]

    return communicates(fsdp_post_forward)


def parallel_call(module: torch.nn.Module) -> Callable[..., torch.Tensor | None]:
    """Returns a function of a graph that calls a module whose parameters are DTensors, with plain tensors.

    On fake tensors it returns None if the result is no plain tensor.
    """
    owner = weakref.ref(module)

    def tensor_parallel(*tensors: torch.Tensor) -> torch.Tensor | None:
        module: Any = owner()
        result = compat.waited(module(*tensors))
        is_plain = not compat.are_fakes_running() or type(result) is compat.FakeTensor
        return result if is_plain else None

    return communicates(tensor_parallel)


# Results on fake tensors


def _prepared(tensors: tuple[torch.Tensor, ...], dtype: torch.dtype | None) -> list[torch.Tensor]:
    found = [_converted(tensor, dtype) for tensor in tensors]
    grad = torch.is_grad_enabled()
    return [tensor.view_as(tensor) if grad and tensor.requires_grad else tensor for tensor in found]


def _converted(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def _gathered(facts: compat.ParameterFacts) -> torch.Tensor:
    data = torch.empty_strided(facts.size, facts.stride, dtype=facts.dtype, device=facts.device)
    return torch.nn.Parameter(data, facts.requires_grad)
