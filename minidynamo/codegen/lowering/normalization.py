"""Owns the composite ATen operations over rows and channels: softmax, layer norm, their gradients, batch norm.

Each is lowered to its folds and formulas; the scheduler fuses them into a kernel. For half types statistics stay in
float32 and are rounded only where eager returns them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from minidynamo.codegen.lowering.builder import Builder
from minidynamo.codegen.lowering.formula import NotLowered, V, apply, const, is_half, opmath, where
from minidynamo.codegen.lowering.reductions import count, moments
from minidynamo.codegen.lowering.registry import Value, lowering


def _row_dims(x: Value, dim: int) -> list[int]:
    dims = [dim % len(x.shape)] if x.shape else []
    if not x.dtype.is_floating_point or count(x, dims) == 0:
        raise NotLowered
    return dims


@lowering("_softmax")
def lower_softmax(builder: Builder, x: Value, dim: int, half_to_float: Any = False) -> Value:
    """Computes `exp(x - max) / sum(exp(x - max))` along a dimension."""
    _, shifted, total = _exponentials(builder, x, dim)
    return builder.map(lambda e, s: e / s, shifted, total, dtype=builder.out.dtype)


@lowering("_safe_softmax")
def lower_safe_softmax(builder: Builder, x: Value, dim: int, dtype: Any = None) -> Value:
    """Computes a softmax that is zero in rows whose elements are all minus infinity."""
    largest, shifted, total = _exponentials(builder, x, dim)
    return builder.map(
        lambda m, e, s: where(m.eq(-math.inf), 0, e / s), largest, shifted, total, dtype=builder.out.dtype
    )


def _exponentials(builder: Builder, x: Value, dim: int) -> tuple[Value, Value, Value]:
    """Returns the largest element of each row, `exp(x - largest)`, and the sum of these exponentials."""
    dims = _row_dims(x, dim)
    # Along columns, eager's CPU kernel rounds half types after each step in the elements that fill no vector.
    if builder.device.type == "cpu" and is_half(x.dtype) and dims != [len(x.shape) - 1]:
        raise NotLowered
    largest = builder.reduce("max", lambda v: v, x, dims=dims, keepdim=True)
    shifted = builder.map(lambda v, m: apply("exp", v - m), x, largest)
    return largest, shifted, builder.reduce("sum", lambda e: e, shifted, dims=dims, keepdim=True)


@lowering("_log_softmax")
def lower_log_softmax(builder: Builder, x: Value, dim: int, half_to_float: bool) -> Value:
    """Computes `x - max - log(sum(exp(x - max)))` along a dimension."""
    dims = _row_dims(x, dim)
    largest = builder.reduce("max", lambda v: v, x, dims=dims, keepdim=True)
    # For rows in memory, eager's CPU kernel stores the sum, and its logarithm, in the dtype of the elements.
    by_rows = builder.device.type == "cpu" and dims == [len(x.shape) - 1]
    stored_dtype = x.dtype if by_rows else opmath(x.dtype)
    total = builder.reduce(
        "sum", lambda v, m: apply("exp", v - m), x, largest, dims=dims, keepdim=True, dtype=stored_dtype
    )

    def formula(v: V, m: V, s: V) -> V:
        return v - m - apply("log", s).to(stored_dtype).to(s.dtype)

    return builder.map(formula, x, largest, total, dtype=builder.out.dtype)


@lowering("_softmax_backward_data")
def lower_softmax_backward(builder: Builder, grad: Value, y: Value, dim: int, input_dtype: Any) -> Value:
    """Computes `y * (grad - sum(grad * y))`."""
    dims = _row_dims(y, dim)
    total = builder.reduce("sum", lambda g, v: g * v, grad, y, dims=dims, keepdim=True)
    return builder.map(lambda g, v, s: (g - s) * v, grad, y, total, dtype=builder.out.dtype)


@lowering("_log_softmax_backward_data")
def lower_log_softmax_backward(builder: Builder, grad: Value, y: Value, dim: int, input_dtype: Any) -> Value:
    """Computes `grad - exp(y) * sum(grad)`."""
    dims = _row_dims(y, dim)
    total = builder.reduce("sum", lambda g: g, grad, dims=dims, keepdim=True)
    return builder.map(lambda g, v, s: g - apply("exp", v) * s, grad, y, total, dtype=builder.out.dtype)


def _normalized(v: V, mean: V, rstd: V, weight: V | None, bias: V | None) -> V:
    """Returns an element of a layer norm."""
    scaled = (v - mean) * rstd if weight is None else (v - mean) * rstd * weight
    return scaled if bias is None else scaled + bias


@lowering("native_layer_norm")
def lower_layer_norm(
    builder: Builder, x: Value, shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float
) -> tuple[Value, ...]:
    """Computes result, mean and reciprocal standard deviation over the last `len(shape)` dimensions."""
    dims = list(range(len(x.shape) - len(shape), len(x.shape)))
    n = count(x, dims)
    if n == 0 or _is_mixed(builder, x, weight):
        raise NotLowered
    on_cpu = builder.device.type == "cpu"
    mean, squares = moments(builder, x, dims)
    rstd = builder.map(lambda s: apply("rsqrt", s / n + eps), squares)
    parameters = [v for v in (weight, bias) if v is not None]

    def formula(v: V, m: V, r: V, *rest: V) -> V:
        operands = iter(rest)
        w = None if weight is None else next(operands)
        b = None if bias is None else next(operands)
        return _normalized(v, m, r, w, b)

    y = builder.map(formula, x, mean, rstd, *parameters, dtype=x.dtype)
    # A CPU returns the statistics in the dtype of the weights, a GPU in float32.
    stored_dtype = torch.float32 if not on_cpu else x.dtype if weight is None else weight.dtype
    stored_dtype = x.dtype if stored_dtype.itemsize < x.dtype.itemsize else stored_dtype
    statistics = (builder.map(lambda s: s, v, dtype=stored_dtype) for v in (mean, rstd))
    return y, *statistics


def _is_mixed(builder: Builder, x: Value, weight: Value | None) -> bool:
    """Returns whether half types meet float weights on a CPU: then fake tensors have the wrong dtype for the
    statistics."""
    return builder.device.type == "cpu" and weight is not None and weight.dtype != x.dtype


@lowering("native_layer_norm_backward")
def lower_layer_norm_backward(
    builder: Builder,
    grad: Value,
    x: Value,
    shape: Sequence[int],
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    wanted: Sequence[bool],
) -> tuple[Value | None, ...]:
    """Computes the gradients of input, weight and bias; None where not wanted."""
    outer = len(x.shape) - len(shape)
    dims, rows = list(range(outer, len(x.shape))), list(range(outer))
    n = count(x, dims)
    if n == 0 or count(x, rows) == 0:
        raise NotLowered
    dx = dw = db = None
    if wanted[0]:
        g = builder.map(lambda d: d, grad) if weight is None else builder.map(lambda d, w: d * w, grad, weight)
        total = builder.reduce("sum", lambda d: d, g, dims=dims, keepdim=True)
        product = builder.reduce("sum", lambda d, v, m, r: d * ((v - m) * r), g, x, mean, rstd, dims=dims, keepdim=True)
        dx = builder.map(
            lambda d, v, m, r, a, b: r * (d - (a + (v - m) * r * b) / n),
            g,
            x,
            mean,
            rstd,
            total,
            product,
            dtype=x.dtype,
        )
    parameter = weight if weight is not None else bias
    if wanted[1] and weight is not None:
        dw = builder.reduce(
            "sum", lambda d, v, m, r: d * ((v - m) * r), grad, x, mean, rstd, dims=rows, dtype=weight.dtype
        )
    if wanted[2] and parameter is not None:
        db = builder.reduce("sum", lambda d: d, grad, dims=rows, dtype=parameter.dtype)
    return dx, dw, db


@lowering("native_batch_norm")
def lower_batch_norm(
    builder: Builder,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    variance: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value, ...]:
    """Computes `x * scale + shift` by the running statistics of each channel, and two empty tensors.

    The rounding is that of eager's CPU kernel for contiguous tensors. Training is left to torch: another order of
    summation would change the statistics.
    """
    operands = [v for v in (x, weight, bias, mean, variance) if v is not None]
    mixed = len({v.dtype for v in operands}) > 1 or x.dtype.itemsize < 4
    if training or mean is None or variance is None or mixed or builder.device.type != "cpu":
        raise NotLowered
    channels = [size if d == 1 else 1 for d, size in enumerate(x.shape)]
    parameters = {"mean": mean, "rstd": builder.map(lambda v: 1 / apply("sqrt", v + eps), variance)}
    parameters |= {name: v for name, v in (("weight", weight), ("bias", bias)) if v is not None}
    by_channel = dict(zip(parameters, (v.view(channels, lambda new: [new[1]]) for v in parameters.values())))

    def formula(v: V, *elements: V) -> V:
        element = dict(zip(by_channel, elements))
        scale = element["rstd"] * element["weight"] if "weight" in element else element["rstd"]
        shift = apply("fma", -element["mean"], scale, element.get("bias", const(0, x.dtype)))
        return apply("fma", v, scale, shift)

    empty = (builder.compute((0,), lambda _: const(0, x.dtype)) for _ in range(2))
    return builder.map(formula, x, *by_channel.values()), *empty
