"""Owns the ATen operations that fold dimensions away.

Each is a call of `Builder.reduce`, with a formula after it where needed. The scheduler and the printers choose the
order of the fold.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minidynamo.codegen.ir.size import Extent, hint, known_at_least, known_less, product
from minidynamo.codegen.lowering.builder import Builder
from minidynamo.codegen.lowering.formula import NotLowered, Number, V, apply, maximum, number, opmath, where
from minidynamo.codegen.lowering.registry import Value, add, lowering

Dims = int | Sequence[int] | None

FEW_RESULTS = 256
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


def lower_extreme(combine: str, builder: Builder, x: Value, dim: Dims = (), keepdim: bool = False) -> Value:
    """Computes the largest or smallest element; NaN if any element is NaN."""
    return extreme(builder, combine, x, folded(x, dim), keepdim)


def lower_extreme_and_position(
    combine: str, builder: Builder, x: Value, dim: int | None = None, keepdim: bool = False
) -> Value | tuple[Value, ...]:
    """Computes the largest or smallest element of all, or along a dimension with its position."""
    if dim is None:
        return extreme(builder, combine, x, folded(x, None), False)
    return _extreme_with_position(combine, builder, x, folded(x, dim), keepdim)


def _extreme_with_position(
    combine: str, builder: Builder, x: Value, dims: Sequence[int], keepdim: bool
) -> tuple[Value, Value]:
    """Returns the extreme value, and the position of the first element that equals it. A NaN equals every NaN."""
    value = extreme(builder, combine, x, dims, True)
    if not x.shape:
        return value, builder.reduce(f"arg{combine}", lambda v: v, x, dims=dims, keepdim=keepdim, dtype=torch.int64)
    n = count(x, dims)
    dtype = torch.int32 if known_less(n, 2**31) else torch.int64
    position = builder.compute(x.shape, lambda at: number(at[dims[0]], dtype))

    def position_if_equal(v: V, m: V, i: V) -> V:
        return where(v.eq(m) | v.ne(v) if v.dtype.is_floating_point else v.eq(m), i, n)

    first = builder.reduce("min", position_if_equal, x, value, position, dims=dims, keepdim=keepdim, dtype=dtype)
    value_result = builder.map(lambda m: m, value.reshape(first.shape), dtype=x.dtype)
    return value_result, builder.map(lambda k: k.to(torch.int64), first)


def lower_position(combine: str, builder: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """Computes the position of the first largest or smallest element."""
    dims = folded(x, dim)
    _require_elements(x, dims)
    if (
        builder.target == "triton"
        and x.shape
        and hint(product(builder.out.shape)) < FEW_RESULTS <= hint(count(x, dims))
    ):
        flat_x = x.reshape((count(x, dims),)) if dim is None else x
        position = _extreme_with_position(combine, builder, flat_x, folded(flat_x, dim), True)[1]
        return builder.map(lambda p: p, position.reshape(builder.out.shape))
    return builder.reduce(f"arg{combine}", lambda v: v, x, dims=dims, keepdim=keepdim)


for _combine in ("max", "min"):
    add(f"a{_combine}", functools.partial(lower_extreme, _combine))
    add(_combine, functools.partial(lower_extreme_and_position, _combine))
    add(f"arg{_combine}", functools.partial(lower_position, _combine))


def lower_truth(combine: str, builder: Builder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """Computes whether any or all elements are not zero. Unlike for other folds, an empty list of dimensions means no
    dimension."""
    dims = [] if isinstance(dim, (list, tuple)) and not dim else folded(x, dim)
    if not dims:
        return builder.map(lambda v: v.to(torch.bool), x, dtype=builder.out.dtype)
    return builder.reduce(combine, lambda v: v.to(torch.bool), x, dims=dims, keepdim=keepdim, dtype=builder.out.dtype)


for _combine in ("any", "all"):
    add(_combine, functools.partial(lower_truth, _combine))


def moments(builder: Builder, x: Value, dims: Sequence[int]) -> tuple[Value, Value]:
    """Returns the mean and the sum of squared deviations, both in the computing dtype, with `dims` kept as size 1.

    The sum of many numbers is rounded, so the first mean is corrected by the mean of the deviations from it.
    """
    n = count(x, dims)
    total = builder.reduce("sum", lambda v: v, x, dims=dims, keepdim=True)
    first_mean = builder.map(lambda s: s / n, total)
    deviations = builder.reduce("sum", lambda v, m: v - m, x, first_mean, dims=dims, keepdim=True)
    mean = builder.map(lambda m, r: m + r / n, first_mean, deviations)
    squares = _deviations(builder, x, first_mean, dims, True)
    return mean, builder.map(lambda s, r: maximum(s - r * (r / n), 0), squares, deviations)


def _deviations(builder: Builder, x: Value, mean: Value, dims: Sequence[int], keepdim: bool) -> Value:
    """Returns the sum of squared deviations from `mean`, in the dtype of `mean`."""

    def squared(v: V, m: V) -> V:
        deviation = v.to(m.dtype) - m
        return deviation * deviation

    return builder.reduce("sum", squared, x, mean, dims=dims, keepdim=keepdim)


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
    eager's result then depends on the order of its sums: doubles are left to torch.
    """
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    subtracted = correction if correction is not None else float(unbiased is not False)
    dims = folded(x, dim)
    divisor = _divisor(count(x, dims), subtracted)
    on_cpu = builder.device.type == "cpu"
    if on_cpu and x.dtype == torch.float64:
        raise NotLowered
    dtype, n = torch.float64 if on_cpu else opmath(x.dtype), count(x, dims)
    total = builder.reduce("sum", lambda v: v.to(dtype), x, dims=dims, keepdim=True)
    mean = builder.map(lambda s: s / n, total)
    squares = _deviations(builder, x, mean, dims, keepdim)
    return builder.map(lambda s: s / divisor, squares), mean


def _divisor(n: Extent, subtracted: float) -> Number:
    if isinstance(n, int):
        return max(n - subtracted, 0.0)
    if subtracted != int(subtracted) or not known_at_least(n - int(subtracted), 0):
        raise NotLowered
    return n - int(subtracted)


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
