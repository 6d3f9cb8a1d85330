"""Owns operators that accept symbolic numbers in place of the float parameters of ATen operators.

Tracing would specialize a float parameter. Each operator here replaces an ATen operator, and runs the ATen operator.
`scalar_arguments.py` selects the calls for which the operators are traced.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minidynamo import compat
from minidynamo.autograd.graph.mutation import NUMBERS_PREFIX, Mutation, mutation_of, named_arguments
from minidynamo.autograd.graph.numbers import is_symbolic
from minidynamo.compat import OpOverload
from minidynamo.fake.mode import EQUIVALENT

aten = torch.ops.aten
_library = torch.library.Library("minidynamo", "FRAGMENT")


@functools.cache
def taking_numbers(op: OpOverload) -> OpOverload:
    """Returns an operator that computes the same as `op` and accepts symbolic floats.

    If `op` writes, also defines a functional variant, found by name, which returns the written data.
    """
    mutation = mutation_of(op)
    op_of_numbers = _defined(op)
    if mutation is not None:
        assert mutation.functional is not None
        functional = _defined(mutation.functional)
        if not mutation.own_results:  # torch lacks meta functions for some updates of lists
            _library.impl(_name(functional), functools.partial(_written_data, op, mutation), "Meta")
            _library.impl(_name(op_of_numbers), lambda *args, **kwargs: None, "Meta")
    return op_of_numbers


@functools.cache
def _defined(op: OpOverload) -> OpOverload:
    schema = compat.schema_of(op)
    packet, overload = f"{NUMBERS_PREFIX}{schema.name.partition('::')[2]}", schema.overload_name
    text = re.sub(r"\bfloat\b", "Scalar", str(schema).partition("(")[2])
    drawn = torch.Tag.nondeterministic_seeded
    name = f"{packet}.{overload}" if overload else packet
    _library.define(f"{name}({text}", tags=(drawn,) if drawn in op.tags else ())
    op_of_numbers: OpOverload = getattr(getattr(torch.ops.minidynamo, packet), overload or "default")
    _library.impl(name, functools.partial(_run, op), "CompositeExplicitAutograd")
    EQUIVALENT[op_of_numbers] = op
    return op_of_numbers


def _name(op: OpOverload) -> str:
    schema = compat.schema_of(op)
    name = schema.name.partition("::")[2]
    return f"{name}.{schema.overload_name}" if schema.overload_name else name


def _run(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Runs `op`; on fake tensors, with the numbers of the call that is compiled for."""

    def known(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [*map(known, value)]
        return value.node.hint if isinstance(value, torch.SymFloat) and is_symbolic(value) else value

    return op(*map(known, args), **{name: known(value) for name, value in kwargs.items()})


def _written_data(op: OpOverload, mutation: Mutation, *args: Any, **kwargs: Any) -> Any:
    """Returns fake tensors for the data that an update of lists of tensors writes."""
    named = named_arguments(op, args, kwargs)
    return tuple([torch.empty_like(tensor) for tensor in named[name]] for name in mutation.arguments)


def optimizer_update(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Runs a fused optimizer update that accepts symbolic numbers. The learning rate is a number or a tensor."""
    packet = getattr(aten, function.__name__)
    op = packet.tensor_lr if isinstance(kwargs["lr"], Tensor) else packet.default
    return taking_numbers(op)(*args, **kwargs)


def custom_op_taking_numbers(op: OpOverload) -> OpOverload:
    """Returns an operator that accepts symbolic floats, with the computation and the derivative of `op`, a custom
    operator of the program (`torch.library.custom_op`)."""
    definition = compat.definition_of(op)
    return _custom_op_for(op, definition.backward, definition.setup_context)


@functools.cache
def _custom_op_for(op: OpOverload, backward: Callable[..., Any] | None, setup: Callable[..., Any] | None) -> OpOverload:
    schema = compat.schema_of(op)
    parameters, _, returned = str(schema).partition("(")[2].rpartition(") -> ")
    op_of_numbers = torch.library.custom_op(
        f"minidynamo::{re.sub(r'[^a-zA-Z0-9]', '_', schema.name)}_of_numbers_{_custom_op_for.cache_info().currsize}",
        functools.partial(_run, op),
        mutates_args=[arg.name for arg in schema.arguments if arg.alias_info is not None and arg.alias_info.is_write],
        schema=f"({re.sub(_FLOAT, 'Scalar', parameters)}) -> {returned}",
        tags=tuple(op.tags),
    )
    op_of_numbers.register_fake(functools.partial(_run, op))
    if backward is not None:
        op_of_numbers.register_autograd(backward, setup_context=setup)
    return compat.overload_of(op_of_numbers)


_FLOAT = r"\bfloat\b(?=[\[?]| \w)"


class _NativeDropout(torch.autograd.Function):
    """Dropout as one operation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: Any) -> Any:
        result, mask = taking_numbers(aten.native_dropout.default)(x, p, True)
        ctx.save_for_backward(mask)
        ctx.scale = 1 / (1 - p)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        return _ScaleKept.apply(gradient, mask, ctx.scale), None  # type: ignore[no-untyped-call]


class _ScaleKept(torch.autograd.Function):
    """Selects and scales the kept elements of a dropout. The derivative applies the same function to gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, scale: Any) -> Any:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return taking_numbers(aten.native_dropout_backward.default)(x, mask, scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (mask,) = ctx.saved_tensors
        return _ScaleKept.apply(gradient, mask, ctx.scale), None, None  # type: ignore[no-untyped-call]


def native_dropout(x: Tensor, p: Any) -> Tensor:
    """Computes `torch.native_dropout(x, p, True)[0]` for any `p` between 0 and 1."""
    result: Tensor = _NativeDropout.apply(x, p)  # type: ignore[no-untyped-call]
    return result


class _BatchNorm(torch.autograd.Function):
    """Batch norm with batch statistics; returns the result, the batch statistics and the new running statistics."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, *others: Any) -> Any:
        results = BATCH_NORM_OF_NUMBERS(x, weight, bias, *others)
        ctx.save_for_backward(x, weight, *results[1:3])
        ctx.mark_non_differentiable(*results[1:])
        return results

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        x, weight, mean, rstd = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        rest = (None,) * (len(ctx.needs_input_grad) - 3)
        # `rstd` includes the epsilon, so backward ignores its own epsilon.
        return *aten.native_batch_norm_backward(gradient, x, weight, None, None, mean, rstd, True, 0.0, wanted), *rest


taking_numbers(aten._native_batch_norm_legit.default)
BATCH_NORM: OpOverload = aten._native_batch_norm_legit_functional.default
BATCH_NORM_OF_NUMBERS = taking_numbers(BATCH_NORM)


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, momentum: Any, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes batch norm in training for any momentum; returns the result, the new running mean and variance."""
    results = _BatchNorm.apply(x, weight, bias, mean, variance, True, momentum, eps)  # type: ignore[no-untyped-call]
    return results[0], results[3], results[4]
