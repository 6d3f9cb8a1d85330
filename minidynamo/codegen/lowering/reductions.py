"""Owns the ATen operations that fold dimensions away.

Each is a call of `Builder.reduce`, with a formula after it where needed. The scheduler and the printers choose the
order of the fold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minidynamo.codegen.ir.expr import Cast
from minidynamo.codegen.ir.index import as_index, flatten, row_major
from minidynamo.codegen.ir.loops import MOMENTS
from minidynamo.codegen.ir.size import Extent, hint, known_at_least, known_less, product
from minidynamo.codegen.lowering.builder import Builder
from minidynamo.codegen.lowering.formula import NotLowered, Number, V, apply, const, number, opmath, where
from minidynamo.codegen.lowering.registry import Value, lowering

Dims = int | Sequence[int] | None

FEW_PLACES = 256
"""Fewer results than this do not keep a GPU busy. A fold for a position cannot be cut into chunks; a fold for the
extreme value and a fold for the first position of this value can be."""


def folded(x: Value, dims: Dims) -> list[int]:
    """Returns the dimensions to fold; None and an empty list mean all."""
    rank = len(x.shape)
    if dims is None or (not isinstance(dims, int) and not dims):
        return list(range(rank))
    return [d % rank if rank else 0 for d in ([dims] if isinstance(dims, int) else dims)]


def count(x: Value, dims: Sequence[int]) -> Extent:
    """Returns the number of elements that are folded into a result."""
    return product(x.shape[d] for d in dims) if x.shape else 1


def _require_elements(x: Value, dims: Sequence[int]) -> None:
    """Raises NotLowered if the fold may have no elements: eager raises the error."""
    if not known_at_least(count(x, dims), 1):
        raise NotLowered


def _converter_to(result_dtype: torch.dtype, x: Value) -> Callable[[V], V]:
    """Returns the conversion of elements for a fold: to `result_dtype` first, then to the computing dtype."""
    return lambda v: (v if x.dtype == result_dtype else v.to(result_dtype)).to(opmath(result_dtype))


@lowering("sum")
def lower_sum(builder: Builder, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """Sums half types in float32, integers and bools in int64 unless the program names a dtype. A sum in bool is True
    if any element is not zero."""
    result_dtype = builder.out.dtype
    dims = folded(x, dim)
    combine = "any" if result_dtype == torch.bool else "sum"
    return builder.reduce(combine, _converter_to(result_dtype, x), x, dims=dims, keepdim=keepdim, dtype=result_dtype)


@lowering("mean")
def lower_mean(builder: Builder, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """Divides the sum by the count; unlike `sum`, it rounds to a half type only once."""
    result_dtype = builder.out.dtype
    dims = folded(x, dim)
    total = builder.reduce("sum", lambda v: v.to(opmath(result_dtype)), x, dims=dims, keepdim=keepdim)
    return builder.map(lambda s: s / count(x, dims), total, dtype=result_dtype)


@lowering("prod")
def lower_prod(builder: Builder, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """Multiplies all elements, or along a dimension. On a CPU eager rounds half types after each factor."""
    result_dtype = builder.out.dtype
    if builder.device.type == "cpu" and opmath(result_dtype) != result_dtype:
        raise NotLowered
    dims = folded(x, dim)
    combine = "all" if result_dtype == torch.bool else "prod"
    return builder.reduce(combine, _converter_to(result_dtype, x), x, dims=dims, keepdim=keepdim, dtype=result_dtype)


def extreme(builder: Builder, combine: str, x: Value, dims: Sequence[int], keepdim: bool) -> Value:
    """Computes max or min, exact in the dtype of `x`."""
    _require_elements(x, dims)
    return builder.reduce(combine, lambda v: v, x, dims=dims, keepdim=keepdim, dtype=x.dtype)


@lowering("amax")
def lower_amax(builder: Builder, x: Value, dim: Dims = (), keepdim: bool = False) -> Value:
    """Computes the largest element; NaN if any element is NaN."""
    return extreme(builder, "max", x, folded(x, dim), keepdim)


@lowering("amin")
def lower_amin(builder: Builder, x: Value, dim: Dims = (), keepdim: bool = False) -> Value:
    """Computes the smallest element; NaN if any element is NaN."""
    return extreme(builder, "min", x, folded(x, dim), keepdim)


def _extreme_or_pair(combine: str, builder: Builder, x: Value, *args: Any) -> Value | tuple[Value, ...]:
    if not args:
        return extreme(builder, combine, x, folded(x, None), False)
    return _extreme_with_position(combine, builder, x, folded(x, args[0]), len(args) > 1 and bool(args[1]))


def _extreme_with_position(
    combine: str, builder: Builder, x: Value, dims: Sequence[int], keepdim: bool
) -> tuple[Value, Value]:
    """Returns the first element that equals the extreme value, and its position.

    Zeros of both signs are equal, so the sign must be read at the position. The second fold finds the first position of
    the extreme value, and carries the sign of the element there as its lowest bit.
    """
    value = extreme(builder, combine, x, dims, True)
    if not x.shape:
        return value, builder.reduce(f"arg{combine}", lambda v: v, x, dims=dims, keepdim=keepdim, dtype=torch.int64)
    n = count(x, dims)
    dtype = torch.int32 if known_less(n, 2**30) else torch.int64
    place = builder.compute(x.shape, lambda at: number(at[dims[0]], dtype))

    def found(v: V, m: V, i: V) -> V:
        if not v.dtype.is_floating_point:
            return where(v.eq(m), i * 2, 2 * n)
        return where(v.eq(m) | v.ne(v), where(_is_negative(v), i * 2 + 1, i * 2), 2 * n)

    key = builder.reduce("min", found, x, value, place, dims=dims, keepdim=keepdim, dtype=dtype)
    position = builder.map(lambda k: apply("shr", k.to(torch.int64), 1), key)
    flat = value.reshape(key.shape)
    if x.dtype.is_floating_point:
        return builder.map(_with_sign, flat, key, dtype=x.dtype), position
    return builder.map(lambda m: m, flat), position


def _with_sign(m: V, key: V) -> V:
    """Returns `m`; a zero takes the sign in the lowest bit of `key`."""
    zero = where(apply("and", key, 1).ne(0), const(-0.0, m.dtype), 0.0)
    return where(m.eq(0), zero, m)


def _is_negative(v: V) -> V:
    """Returns whether the sign bit is set, as in the negative zero."""
    return apply("copysign", 1.0, v) < 0


@lowering("max")
def lower_max(builder: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value | tuple[Value, ...]:
    """Computes the largest element of all, or along a dimension with its position."""
    return _extreme_or_pair("max", builder, x, *(() if dim is None else (dim, keepdim)))


@lowering("min")
def lower_min(builder: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value | tuple[Value, ...]:
    """Computes the smallest element of all, or along a dimension with its position."""
    return _extreme_or_pair("min", builder, x, *(() if dim is None else (dim, keepdim)))


def _argument(combine: str, builder: Builder, x: Value, dim: int | None, keepdim: bool) -> Value:
    dims = folded(x, dim)
    _require_elements(x, dims)
    if builder.target == "triton" and x.shape and hint(product(builder.out.shape)) < FEW_PLACES <= hint(count(x, dims)):
        flat_x = x.reshape((count(x, dims),)) if dim is None else x
        place = _extreme_with_position(combine.removeprefix("arg"), builder, flat_x, folded(flat_x, dim), True)[1]
        return builder.map(lambda p: p, place.reshape(builder.out.shape))
    return builder.reduce(combine, lambda v: v, x, dims=dims, keepdim=keepdim)


@lowering("argmax")
def lower_argmax(builder: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """Computes the position of the first largest element."""
    return _argument("argmax", builder, x, dim, keepdim)


@lowering("argmin")
def lower_argmin(builder: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """Computes the position of the first smallest element."""
    return _argument("argmin", builder, x, dim, keepdim)


def _fold_truth(combine: str, builder: Builder, x: Value, dim: Dims, keepdim: bool) -> Value:
    """Folds the truth values of the elements. Unlike for other folds, an empty list of dimensions means no
    dimension."""
    dims = [] if isinstance(dim, (list, tuple)) and not dim else folded(x, dim)
    if not dims:
        return builder.map(lambda v: v.to(torch.bool), x, dtype=builder.out.dtype)
    return builder.reduce(combine, lambda v: v.to(torch.bool), x, dims=dims, keepdim=keepdim, dtype=builder.out.dtype)


@lowering("any")
def lower_any(builder: Builder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """Computes whether any element is not zero."""
    return _fold_truth("any", builder, x, dim, keepdim)


@lowering("all")
def lower_all(builder: Builder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """Computes whether no element is zero."""
    return _fold_truth("all", builder, x, dim, keepdim)


def moments(builder: Builder, x: Value, dims: Sequence[int], safe: bool = False) -> tuple[Value, Value]:
    """Returns the mean and the sum of squared deviations, both in the computing dtype, with `dims` kept as size 1.

    With `safe` the mean is finite if only the sum overflows.
    """
    n = count(x, dims)
    total = builder.reduce("sum", lambda v: v, x, dims=dims, keepdim=True)
    mean = builder.map(lambda s: s / n, total)
    mean = _finite(builder, mean, x, dims) if safe else mean
    return mean, _deviations(builder, x, mean, dims, True)


def row_moments(builder: Builder, x: Value) -> tuple[Value, Value]:
    """Computes `moments` over the last dimension, in the steps of eager's CPU kernels for rows."""
    if x.shape[-1] == 1:
        # Eager adds the (zero) lanes of its vectors with weight zero.
        mean = builder.map(lambda v: v + (0 - v) * 0, x)
        return mean, builder.map(lambda v: v * (v - v) + v * v * 0, x)

    def stored(v: V) -> V:
        return V(v.expr.value) if isinstance(v.expr, Cast) else v

    result_dtype = [
        builder.reduce(combine, stored, x, dims=[-1], keepdim=True, dtype=opmath(x.dtype)) for combine in MOMENTS
    ]
    return result_dtype[0], result_dtype[1]


def _finite(builder: Builder, mean: Value, x: Value, dims: Sequence[int]) -> Value:
    """Returns `mean`, made finite where only the sum has overflowed."""
    n = count(x, dims)
    parts = builder.reduce("sum", lambda v: v * (1 / n) if isinstance(n, int) else v / n, x, dims=dims, keepdim=True)
    return builder.map(lambda m, p: where((m - m).ne(0) & (p - p).eq(0), p, m), mean, parts)


def _deviations(builder: Builder, x: Value, mean: Value, dims: Sequence[int], keepdim: bool) -> Value:
    """Returns the sum of squared deviations from `mean`, in the dtype of `mean`."""

    def squared(v: V, m: V) -> V:
        away = v.to(m.dtype) - m
        return away * away

    return builder.reduce("sum", squared, x, mean, dims=dims, keepdim=keepdim)


def _running_mean(builder: Builder, x: Value, dims: Sequence[int], dtype: torch.dtype) -> Value:
    """Returns the mean in `dtype`, with `dims` kept as size 1, as eager computes it.

    Eager corrects a running mean with each element: after an infinity, the next element makes it NaN.
    """
    n, dims = count(x, dims), dims if x.shape else []
    if not known_at_least(n, 1):
        total = builder.reduce("sum", lambda v: v.to(dtype), x, dims=dims, keepdim=True)
        return builder.map(lambda s: s / n, total)
    strides = row_major([x.shape[d] for d in dims])
    is_last = builder.compute(x.shape, lambda at: number(flatten([at[d] for d in dims], strides)) >= n - 1)
    before = builder.reduce("sum", lambda v, last: where(last, 0, v.to(dtype)), x, is_last, dims=dims, keepdim=True)
    kept = [1 if d in dims else size for d, size in enumerate(x.shape)]
    last = x.view(kept, lambda new: [as_index(x.shape[d] - 1) if d in dims else i for d, i in enumerate(new)])
    return builder.map(lambda s, v: where(apply("isinf", s), math.nan, (s + v.to(dtype)) / n), before, last)


def _variance(
    builder: Builder,
    x: Value,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Value, Value]:
    """Returns the variance, and the mean with `dims` kept as size 1. The arguments are those of aten.var.

    On a CPU eager computes in double, so squares of large numbers do not overflow. Squares of doubles may overflow, and
    eager's result then depends on its running means: doubles are left to torch.
    """
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    lost = correction if correction is not None else float(unbiased is not False)
    dims = folded(x, dim)
    divisor = _at_least_zero(count(x, dims), lost)
    on_cpu = builder.device.type == "cpu"
    if on_cpu and x.dtype == torch.float64:
        raise NotLowered
    mean = _running_mean(builder, x, dims, torch.float64 if on_cpu else opmath(x.dtype))
    squares = _deviations(builder, x, mean, dims, keepdim)
    return builder.map(lambda s: s / divisor, squares), mean


def _at_least_zero(n: Extent, lost: float) -> Number:
    if isinstance(n, int):
        return max(n - lost, 0.0)
    if lost != int(lost) or not known_at_least(n - int(lost), 0):
        raise NotLowered
    return n - int(lost)


@lowering("var")
def lower_var(builder: Builder, x: Value, *args: Any, **kwargs: Any) -> Value:
    """Computes the variance, in two passes over the data."""
    return builder.map(lambda v: v, _variance(builder, x, *args, **kwargs)[0], dtype=x.dtype)


@lowering("std")
def lower_std(builder: Builder, x: Value, *args: Any, **kwargs: Any) -> Value:
    """Computes the square root of the variance."""
    return builder.map(lambda v: apply("sqrt", v), _variance(builder, x, *args, **kwargs)[0], dtype=x.dtype)


@lowering("var_mean")
def lower_var_mean(builder: Builder, x: Value, *args: Any, **kwargs: Any) -> tuple[Value, Value]:
    """Computes variance and mean."""
    variance, mean = _variance(builder, x, *args, **kwargs)
    flat = mean.reshape(variance.shape)
    return builder.map(lambda v: v, variance, dtype=x.dtype), builder.map(lambda m: m, flat, dtype=x.dtype)


@lowering("logsumexp")
def lower_logsumexp(builder: Builder, x: Value, dim: Dims, keepdim: bool = False) -> Value:
    """Computes the logarithm of the sum of exponentials, shifted by the largest element; eager rounds after each
    step."""
    dims = folded(x, dim)
    if not x.dtype.is_floating_point or count(x, dims) == 0:
        raise NotLowered
    largest = builder.reduce("max", lambda v: v, x, dims=dims, keepdim=True)
    # An infinite maximum must not become infinity minus infinity.
    shift = builder.map(lambda m: where(apply("isinf", m), 0, m), largest)

    def rounded(v: V) -> V:
        return v.to(x.dtype).to(v.dtype)

    def exponential(v: V, m: V) -> V:
        return rounded(apply("exp", rounded(v - m)))

    total = builder.reduce("sum", exponential, x, shift, dims=dims, keepdim=keepdim, dtype=x.dtype)
    flat = shift if keepdim else shift.reshape(total.shape)
    return builder.map(lambda s, m: rounded(apply("log", s)) + m, total, flat, dtype=x.dtype)
