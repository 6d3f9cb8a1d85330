"""Owns the ATen operations that fold dimensions away.

Each is a call of `Builder.reduce`, perhaps with a formula behind it; in which order elements are folded is decided by
the scheduler and the printers.
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
from minidynamo.codegen.lowering.registry import lowering
from minidynamo.codegen.lowering.values import Value

Dims = int | Sequence[int] | None

FEW_PLACES = 256
"""Fewer positions than this keep no GPU busy. A fold that looks for one cannot be cut into chunks, but the two can that
look for the extreme value and for the first place where it stands."""


def folded(x: Value, dims: Dims) -> list[int]:
    """The dimensions to fold; None and an empty list mean all."""
    rank = len(x.shape)
    if dims is None or (not isinstance(dims, int) and not dims):
        return list(range(rank))
    return [d % rank if rank else 0 for d in ([dims] if isinstance(dims, int) else dims)]


def count(x: Value, dims: Sequence[int]) -> Extent:
    """How many elements are folded into one."""
    return product(x.shape[d] for d in dims) if x.shape else 1


def _required(x: Value, dims: Sequence[int]) -> None:
    """An extreme value of nothing does not exist; eager has the error message."""
    if not known_at_least(count(x, dims), 1):
        raise NotLowered


def _taken_as(made: torch.dtype, x: Value) -> Callable[[V], V]:
    """How a fold that makes `made` takes its elements: converted to that first, then to what it computes in."""
    return lambda v: (v if x.dtype == made else v.to(made)).to(opmath(made))


@lowering("sum")
def lower_sum(builder: Builder, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """Half types are summed in float32, integers and bools in int64 unless the program names a dtype; a sum in bool is
    whether there is something that is not zero."""
    made = builder.out.dtype
    dims = folded(x, dim)
    combine = "any" if made == torch.bool else "sum"
    return builder.reduce(combine, _taken_as(made, x), x, dims=dims, keepdim=keepdim, dtype=made)


@lowering("mean")
def lower_mean(builder: Builder, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """The sum divided by the count; unlike `sum`, it rounds to a half type but once."""
    made = builder.out.dtype
    dims = folded(x, dim)
    total = builder.reduce("sum", lambda v: v.to(opmath(made)), x, dims=dims, keepdim=keepdim)
    return builder.map(lambda s: s / count(x, dims), total, dtype=made)


@lowering("prod")
def lower_prod(builder: Builder, x: Value, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    """The product of all elements, or along one dimension. Eager rounds half types after each factor on a CPU."""
    made = builder.out.dtype
    if builder.device.type == "cpu" and opmath(made) != made:
        raise NotLowered
    dims = folded(x, dim)
    combine = "all" if made == torch.bool else "prod"
    return builder.reduce(combine, _taken_as(made, x), x, dims=dims, keepdim=keepdim, dtype=made)


def extreme(builder: Builder, combine: str, x: Value, dims: Sequence[int], keepdim: bool) -> Value:
    """max or min, exact in the dtype of `x`."""
    _required(x, dims)
    return builder.reduce(combine, lambda v: v, x, dims=dims, keepdim=keepdim, dtype=x.dtype)


@lowering("amax")
def lower_amax(builder: Builder, x: Value, dim: Dims = (), keepdim: bool = False) -> Value:
    """The largest element, NaN if there is one."""
    return extreme(builder, "max", x, folded(x, dim), keepdim)


@lowering("amin")
def lower_amin(builder: Builder, x: Value, dim: Dims = (), keepdim: bool = False) -> Value:
    """The smallest element, NaN if there is one."""
    return extreme(builder, "min", x, folded(x, dim), keepdim)


def _extreme_or_pair(combine: str, builder: Builder, x: Value, *args: Any) -> Value | tuple[Value, ...]:
    if not args:
        return extreme(builder, combine, x, folded(x, None), False)
    return _extreme_with_position(combine, builder, x, folded(x, args[0]), len(args) > 1 and bool(args[1]))


def _extreme_with_position(
    combine: str, builder: Builder, x: Value, dims: Sequence[int], keepdim: bool
) -> tuple[Value, Value]:
    """The first of the elements that are equal to the extreme one, with its position.

    Of zeros the sign says which one it is. So the second fold looks for the first position where the extreme value
    stands, and takes the sign of what is there along as its lowest bit.
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
    """`m`, and if it is zero that with the sign in the lowest bit of `key`."""
    zero = where(apply("and", key, 1).ne(0), const(-0.0, m.dtype), 0.0)
    return where(m.eq(0), zero, m)


def _is_negative(v: V) -> V:
    """Whether it has a minus sign, as the negative zero has, too."""
    return apply("copysign", 1.0, v) < 0


@lowering("max")
def lower_max(builder: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value | tuple[Value, ...]:
    """The largest element of all, or along one dimension with its position."""
    return _extreme_or_pair("max", builder, x, *(() if dim is None else (dim, keepdim)))


@lowering("min")
def lower_min(builder: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value | tuple[Value, ...]:
    """The smallest element of all, or along one dimension with its position."""
    return _extreme_or_pair("min", builder, x, *(() if dim is None else (dim, keepdim)))


def _argument(combine: str, builder: Builder, x: Value, dim: int | None, keepdim: bool) -> Value:
    dims = folded(x, dim)
    _required(x, dims)
    if builder.target == "triton" and x.shape and hint(product(builder.out.shape)) < FEW_PLACES <= hint(count(x, dims)):
        one = x.reshape((count(x, dims),)) if dim is None else x
        place = _extreme_with_position(combine.removeprefix("arg"), builder, one, folded(one, dim), True)[1]
        return builder.map(lambda p: p, place.reshape(builder.out.shape))
    return builder.reduce(combine, lambda v: v, x, dims=dims, keepdim=keepdim)


@lowering("argmax")
def lower_argmax(builder: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """The position of the first largest element."""
    return _argument("argmax", builder, x, dim, keepdim)


@lowering("argmin")
def lower_argmin(builder: Builder, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """The position of the first smallest element."""
    return _argument("argmin", builder, x, dim, keepdim)


def _of_truths(combine: str, builder: Builder, x: Value, dim: Dims, keepdim: bool) -> Value:
    """A fold of what is not zero. Unlike for other folds, an empty list of dimensions means none of them."""
    dims = [] if isinstance(dim, (list, tuple)) and not dim else folded(x, dim)
    if not dims:
        return builder.map(lambda v: v.to(torch.bool), x, dtype=builder.out.dtype)
    return builder.reduce(combine, lambda v: v.to(torch.bool), x, dims=dims, keepdim=keepdim, dtype=builder.out.dtype)


@lowering("any")
def lower_any(builder: Builder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """Whether any element is not zero."""
    return _of_truths("any", builder, x, dim, keepdim)


@lowering("all")
def lower_all(builder: Builder, x: Value, dim: Dims = None, keepdim: bool = False) -> Value:
    """Whether no element is zero."""
    return _of_truths("all", builder, x, dim, keepdim)


def moments(builder: Builder, x: Value, dims: Sequence[int], safe: bool = False) -> tuple[Value, Value]:
    """The mean and the sum of squared deviations, both in the computing dtype, with their dimensions kept. A `safe`
    mean is finite where only the sum overflows."""
    n = count(x, dims)
    total = builder.reduce("sum", lambda v: v, x, dims=dims, keepdim=True)
    mean = builder.map(lambda s: s / n, total)
    mean = _finite(builder, mean, x, dims) if safe else mean
    return mean, _deviations(builder, x, mean, dims, True)


def row_moments(builder: Builder, x: Value) -> tuple[Value, Value]:
    """As `moments`, over the last dimension, in the steps of eager's kernels for rows on a CPU."""
    if x.shape[-1] == 1:
        # What the lanes have is added with weight zero.
        mean = builder.map(lambda v: v + (0 - v) * 0, x)
        return mean, builder.map(lambda v: v * (v - v) + v * v * 0, x)

    def stored(v: V) -> V:
        return V(v.expr.value) if isinstance(v.expr, Cast) else v

    made = [builder.reduce(combine, stored, x, dims=[-1], keepdim=True, dtype=opmath(x.dtype)) for combine in MOMENTS]
    return made[0], made[1]


def _finite(builder: Builder, mean: Value, x: Value, dims: Sequence[int]) -> Value:
    """`mean`, but finite where only the sum has overflowed."""
    n = count(x, dims)
    parts = builder.reduce("sum", lambda v: v * (1 / n) if isinstance(n, int) else v / n, x, dims=dims, keepdim=True)
    return builder.map(lambda m, p: where((m - m).ne(0) & (p - p).eq(0), p, m), mean, parts)


def _deviations(builder: Builder, x: Value, mean: Value, dims: Sequence[int], keepdim: bool) -> Value:
    """The sum of squared deviations from `mean`, in its dtype."""

    def squared(v: V, m: V) -> V:
        away = v.to(m.dtype) - m
        return away * away

    return builder.reduce("sum", squared, x, mean, dims=dims, keepdim=keepdim)


def _running_mean(builder: Builder, x: Value, dims: Sequence[int], dtype: torch.dtype) -> Value:
    """The mean in `dtype`, dimensions kept, as eager has it, which corrects the mean with each element: behind an
    infinity, the next one makes it NaN."""
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
    """Variance, and mean with its dimensions kept. Arguments as those of aten.var. On a CPU eager computes in double,
    so squares of large numbers do not overflow. Those of doubles may, and what eager makes of them hangs on the means
    that it has on the way: that is left to torch."""
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
    """The variance, in two passes over the data."""
    return builder.map(lambda v: v, _variance(builder, x, *args, **kwargs)[0], dtype=x.dtype)


@lowering("std")
def lower_std(builder: Builder, x: Value, *args: Any, **kwargs: Any) -> Value:
    """The square root of the variance."""
    return builder.map(lambda v: apply("sqrt", v), _variance(builder, x, *args, **kwargs)[0], dtype=x.dtype)


@lowering("var_mean")
def lower_var_mean(builder: Builder, x: Value, *args: Any, **kwargs: Any) -> tuple[Value, Value]:
    """Variance and mean."""
    variance, mean = _variance(builder, x, *args, **kwargs)
    flat = mean.reshape(variance.shape)
    return builder.map(lambda v: v, variance, dtype=x.dtype), builder.map(lambda m: m, flat, dtype=x.dtype)


@lowering("logsumexp")
def lower_logsumexp(builder: Builder, x: Value, dim: Dims, keepdim: bool = False) -> Value:
    """The logarithm of the sum of exponentials, shifted by the largest element; eager rounds after each step."""
    dims = folded(x, dim)
    if not x.dtype.is_floating_point or count(x, dims) == 0:
        raise NotLowered
    largest = builder.reduce("max", lambda v: v, x, dims=dims, keepdim=True)
    # An infinite maximum must not turn into infinity minus infinity.
    shift = builder.map(lambda m: where(apply("isinf", m), 0, m), largest)

    def rounded(v: V) -> V:
        return v.to(x.dtype).to(v.dtype)

    def exponential(v: V, m: V) -> V:
        return rounded(apply("exp", rounded(v - m)))

    total = builder.reduce("sum", exponential, x, shift, dims=dims, keepdim=keepdim, dtype=x.dtype)
    flat = shift if keepdim else shift.reshape(total.shape)
    return builder.map(lambda s, m: rounded(apply("log", s)) + m, total, flat, dtype=x.dtype)
