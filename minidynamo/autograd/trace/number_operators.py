"""Owns operators that take symbolic numbers where those of ATen take floats, which tracing would fix.

Each runs the operator that it stands for. Which calls they are traced for is said in `scalar_arguments.py`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minidynamo import compat
from minidynamo.autograd.graph.mutation import OF_NUMBERS, Mutation, mutation_of, named_arguments
from minidynamo.autograd.graph.numbers import is_symbolic
from minidynamo.compat import OpOverload
from minidynamo.fake.mode import STANDS_FOR

aten = torch.ops.aten
_library = torch.library.Library("minidynamo", "FRAGMENT")


@functools.cache
def taking_numbers(op: OpOverload) -> OpOverload:
    """The operator that does what `op` does, and whose floats may be symbolic. If `op` writes, another one is made
    that returns what this would write, and is found by its name."""
    mutation = mutation_of(op)
    made = _defined(op)
    if mutation is not None:
        assert mutation.functional is not None
        functional = _defined(mutation.functional)
        if not mutation.own_results:  # torch does not foretell all updates of lists
            _library.impl(_name(functional), functools.partial(_written, op, mutation), "Meta")
            _library.impl(_name(made), lambda *args, **kwargs: None, "Meta")
    return made


@functools.cache
def _defined(op: OpOverload) -> OpOverload:
    schema = compat.schema_of(op)
    packet, overload = f"{OF_NUMBERS}{schema.name.partition('::')[2]}", schema.overload_name
    text = re.sub(r"\bfloat\b", "Scalar", str(schema).partition("(")[2])
    drawn = torch.Tag.nondeterministic_seeded
    name = f"{packet}.{overload}" if overload else packet
    _library.define(f"{name}({text}", tags=(drawn,) if drawn in op.tags else ())
    made: OpOverload = getattr(getattr(torch.ops.minidynamo, packet), overload or "default")
    _library.impl(name, functools.partial(_run, op), "CompositeExplicitAutograd")
    STANDS_FOR[made] = op
    return made


def _name(op: OpOverload) -> str:
    schema = compat.schema_of(op)
    name = schema.name.partition("::")[2]
    return f"{name}.{schema.overload_name}" if schema.overload_name else name


def _run(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The operator itself; without data its numbers are those of the call that is being compiled for."""

    def known(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [*map(known, value)]
        return value.node.hint if isinstance(value, torch.SymFloat) and is_symbolic(value) else value

    return op(*map(known, args), **{name: known(value) for name, value in kwargs.items()})


def _written(op: OpOverload, mutation: Mutation, *args: Any, **kwargs: Any) -> Any:
    """What an update of lists of tensors writes, without data."""
    named = named_arguments(op, args, kwargs)
    return tuple([torch.empty_like(tensor) for tensor in named[name]] for name in mutation.arguments)


def updated(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A whole update of an optimizer, for any numbers. The learning rate is a number or a tensor."""
    packet = getattr(aten, function.__name__)
    op = packet.tensor_lr if isinstance(kwargs["lr"], Tensor) else packet.default
    return taking_numbers(op)(*args, **kwargs)


def of_program(op: OpOverload) -> OpOverload:
    """The operator that does what `op` does, which a program has made with `torch.library.custom_op`, with the same
    derivative, and whose floats may be symbolic."""
    definition = compat.definition_of(op)
    return _of_program(op, definition.backward, definition.setup_context)


@functools.cache
def _of_program(op: OpOverload, backward: Callable[..., Any] | None, setup: Callable[..., Any] | None) -> OpOverload:
    schema = compat.schema_of(op)
    parameters, _, returned = str(schema).partition("(")[2].rpartition(") -> ")
    made = torch.library.custom_op(
        f"minidynamo::{re.sub(r'[^a-zA-Z0-9]', '_', schema.name)}_of_numbers_{_of_program.cache_info().currsize}",
        functools.partial(_run, op),
        mutates_args=[arg.name for arg in schema.arguments if arg.alias_info is not None and arg.alias_info.is_write],
        schema=f"({re.sub(_FLOAT, 'Scalar', parameters)}) -> {returned}",
        tags=tuple(op.tags),
    )
    made.register_fake(functools.partial(_run, op))
    if backward is not None:
        made.register_autograd(backward, setup_context=setup)
    return compat.overload_of(made)


_FLOAT = r"\bfloat\b(?=[\[?]| \w)"


class _NativeDropout(torch.autograd.Function):
    """Dropout as it is one operation: the result, and which elements are kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: Any) -> Any:
        made, kept = taking_numbers(aten.native_dropout.default)(x, p, True)
        ctx.save_for_backward(kept)
        ctx.scale = 1 / (1 - p)
        ctx.mark_non_differentiable(kept)
        return made, kept

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        (kept,) = ctx.saved_tensors
        return _Kept.apply(gradient, kept, ctx.scale), None  # type: ignore[no-untyped-call]


class _Kept(torch.autograd.Function):
    """The elements that dropout has kept, scaled. Its derivative is the same of gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor, scale: Any) -> Any:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return taking_numbers(aten.native_dropout_backward.default)(x, kept, scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (kept,) = ctx.saved_tensors
        return _Kept.apply(gradient, kept, ctx.scale), None, None  # type: ignore[no-untyped-call]


def native_dropout(x: Tensor, p: Any) -> tuple[Tensor, Tensor]:
    """`torch.native_dropout(x, p, True)` for any `p` between 0 and 1."""
    made: tuple[Tensor, Tensor] = _NativeDropout.apply(x, p)  # type: ignore[no-untyped-call]
    return made


class _BatchNorm(torch.autograd.Function):
    """Batch norm by the statistics of its batch: the result, those statistics, and the new running ones."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, *more: Any) -> Any:
        made = BATCH_NORM_OF_NUMBERS(x, weight, bias, *more)
        ctx.save_for_backward(x, weight, *made[1:3])
        ctx.mark_non_differentiable(*made[1:])
        return made

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        x, weight, mean, rstd = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        rest = (None,) * (len(ctx.needs_input_grad) - 3)
        # What is added to the variance is in `rstd`, and is not asked for.
        return *aten.native_batch_norm_backward(gradient, x, weight, None, None, mean, rstd, True, 0.0, wanted), *rest


taking_numbers(aten._native_batch_norm_legit.default)
BATCH_NORM: OpOverload = aten._native_batch_norm_legit_functional.default
BATCH_NORM_OF_NUMBERS = taking_numbers(BATCH_NORM)


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, momentum: Any, eps: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm in training for any numbers: the result, and the new running statistics."""
    made = _BatchNorm.apply(x, weight, bias, mean, variance, True, momentum, eps)  # type: ignore[no-untyped-call]
    return made[0], made[3], made[4]
