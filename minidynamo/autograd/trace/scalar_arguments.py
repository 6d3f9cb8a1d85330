"""Owns the tracing of calls with symbolic numbers where torch accepts only plain numbers (`graph/scalar_arguments.py`).

Most calls become one operation; its derivative is a second operation (`fallback_op.py`). Calls that draw random numbers
or update statistics are split into a part that only draws or writes, and operations with symbolic arguments.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

from minidynamo import compat
from minidynamo.autograd.graph.numbers import is_empty, is_symbolic
from minidynamo.autograd.trace.fallback_op import method, run_with_numbers
from minidynamo.autograd.trace.number_operators import (
    batch_norm,
    custom_op_taking_numbers,
    native_dropout,
    optimizer_update,
)
from minidynamo.graph.custom_operators import define
from minidynamo.graph.pytree import as_sequence, leaves
from minidynamo.graph.scalar_arguments import DRAWS, ScalarArguments, key_of_whole, operator_of, scalar_arguments_of


def _draw(
    like: Tensor, method: str, first: Any, second: Any = None, *, generator: torch.Generator | None = None
) -> Tensor:
    result = like.new_empty_strided(like.size(), like.stride())
    numbers = [n.node.hint if is_symbolic(n) else n for n in (first, second) if n is not None]
    drawn: Tensor = getattr(result, method)(*numbers, generator=generator)
    return drawn


draw = define(
    "draw",
    "(Tensor like, str method, Scalar first, Scalar? second=None, *, Generator? generator=None) -> Tensor",
    _draw,
    tags=(torch.Tag.nondeterministic_seeded,),
)
"""Returns a tensor with the layout of `like`, filled by a tensor method that draws random numbers."""


Args = tuple[Any, ...]
Kwargs = dict[str, Any]


def takes_plain_numbers(target: Any, args: Args, kwargs: Kwargs) -> bool:
    """Returns whether a call has a symbolic number where torch accepts only plain numbers."""
    scalars = scalar_arguments_of(target) if any(map(_symbols, (*args, *kwargs.values()))) else None
    if kwargs.get("out") is not None:
        return False
    return scalars is not None and any(_varies(scalars, scalars.named(args, kwargs)).values())


def _varies(scalars: ScalarArguments, named: Mapping[str, Any]) -> dict[str, bool]:
    """Maps each argument to whether it has symbolic numbers where torch accepts only plain numbers."""
    tensors = [value for value in named.values() if isinstance(value, Tensor)]
    return {
        name: any(scalars.varies(name, isinstance(number, torch.SymInt), tensors) for number in _symbols(value))
        for name, value in named.items()
    }


def _symbols(value: Any) -> list[Any]:
    """Returns the symbolic numbers in an argument: the value itself, or items of a list."""
    return [item for item in as_sequence(value) if is_symbolic(item)]


def with_hints(target: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Returns the arguments with scalar arguments replaced by their values in the call that is compiled for.

    No layout depends on scalar arguments.
    """
    if key_of_whole(target) is not None:
        return fx.node.map_aggregate(args, lambda n: n.node.hint if isinstance(n, torch.SymFloat) else n), kwargs
    if not takes_plain_numbers(target, args, kwargs):
        return args, kwargs
    return _converted(target, args, kwargs, lambda n: n.node.hint)


def _converted(target: Any, args: Args, kwargs: Kwargs, convert: Callable[[Any], Any]) -> tuple[Args, Kwargs]:
    """Returns the arguments, with `convert` applied to symbolic numbers where torch accepts only plain numbers."""
    scalars = scalar_arguments_of(target)
    assert scalars is not None
    varies = _varies(scalars, scalars.named(args, kwargs))

    def convert_argument(name: str, value: Any) -> Any:
        if not varies[name]:
            return value
        if isinstance(value, (list, tuple)):
            return [convert(item) if is_symbolic(item) else item for item in value]
        return convert(value)

    converted = [convert_argument(name, value) for name, value in zip(scalars.names, args)]
    return (*converted, *args[len(converted) :]), {
        name: convert_argument(name, value) for name, value in kwargs.items()
    }


def call(target: Any, args: Args, kwargs: Kwargs) -> Any:
    """Traces a call for any value of its numbers; NotImplemented for calls without symbolic scalar arguments."""
    if key_of_whole(target) is not None and any(map(is_symbolic, leaves([*args]))):
        return run_with_numbers(target, args, kwargs)
    if not takes_plain_numbers(target, args, kwargs):
        return NotImplemented
    args, kwargs = _converted(target, args, kwargs, torch.sym_float)
    op = operator_of(target)
    if op is not None:
        has_formula = compat.definition_of(op) is not None
        return custom_op_taking_numbers(op)(*args, **kwargs) if has_formula else run_with_numbers(op, args, kwargs)
    if target in _SPLIT:
        return _SPLIT[target](*args, **kwargs)
    function = method(target) if isinstance(target, str) else target
    if target is operator.ipow or str(target).endswith("_"):
        function, copy = functools.partial(_on_copy, function), args[0].clone()
        return args[0].copy_(run_with_numbers(function, (copy, *args[1:]), kwargs))
    return run_with_numbers(function, args, kwargs)


def _on_copy(function: Callable[..., Any], target: Tensor, /, *args: Any, **kwargs: Any) -> Any:
    return function(target.clone(), *args, **kwargs)


def _draw_like(like: Tensor, method: str, *numbers: Any, generator: torch.Generator | None = None) -> Tensor:
    """Returns random numbers in a tensor like `like`. The strides decide which number goes where."""
    with torch.no_grad():
        layout = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=like.device)
    drawn: Tensor = draw(layout, method, *numbers, generator=generator)
    return drawn


def _draw_into(
    method: str, target: Tensor, /, *args: Any, generator: torch.Generator | None = None, **kwargs: Any
) -> Tensor:
    numbers = {**DRAWS[method], **dict(zip(DRAWS[method], args)), **kwargs}
    return target.copy_(_draw_like(target, method, *numbers.values(), generator=generator))


def _dropout(input: Tensor, p: Any, training: bool = True, inplace: bool = False) -> Tensor:
    """Computes dropout of elements by the steps of torch's CPU implementation."""
    if not training or is_empty(input):
        return input
    if not inplace and (input.is_cuda or input.is_xpu):
        return native_dropout(input, p)
    like = torch.empty_like(input)
    kept = torch.ne(_draw_like(like, "bernoulli_", 1 - p), 0).to(input.dtype)  # forward saves one byte per element
    return (input.mul_ if inplace else input.mul)(kept.div(1 - p))


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: Any = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Computes batch norm, and updates the running statistics in training. Otherwise the momentum is not read."""
    if not training or running_mean is None or running_var is None:
        return functional.batch_norm(input, running_mean, running_var, weight, bias, training, 0.0, eps)
    result, mean, var = batch_norm(input, weight, bias, running_mean, running_var, momentum, eps)
    with torch.no_grad():
        running_mean.copy_(mean)
        running_var.copy_(var)
    return result


_SPLIT: dict[Any, Callable[..., Any]] = {
    **{name: functools.partial(_draw_into, name) for name in DRAWS},
    functional.dropout: _dropout,
    functional.batch_norm: _batch_norm,
    **{update: functools.partial(optimizer_update, update) for update in compat.FUSED_UPDATES},
}
