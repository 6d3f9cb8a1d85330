"""Owns meta functions of normalizations, softmax and activations with symbolic sizes: results from shapes alone.

torch decomposes these operations in Python; with symbolic sizes, each component costs as much as the operation. Unusual
arguments are left to torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from minidynamo import compat
from minidynamo.compat import OpOverload

aten = torch.ops.aten


def _elementwise(op: OpOverload, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Returns the result of an operation on each element of a floating-point tensor."""
    if not x.dtype.is_floating_point:
        return NotImplemented
    return _empty(x, x.shape, compat.elementwise_strides(x))


def _elementwise_gradient(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Returns the gradient of such an operation, from the gradient of the result, and the operand or the result."""
    gradient, x = (arg for arg in args if isinstance(arg, Tensor))
    return _empty(x, x.shape, compat.elementwise_strides(gradient, x)) if _are_alike(gradient, x) else NotImplemented


def _log_softmax(op: OpOverload, x: Tensor, dim: int, half_to_float: bool) -> Any:
    is_usual = x.dtype.is_floating_point and not half_to_float and -x.dim() <= dim < x.dim()
    return _empty(x, x.shape) if is_usual else NotImplemented


def _softmax_gradient(op: OpOverload, gradient: Tensor, result: Tensor, dim: int, dtype: torch.dtype) -> Any:
    if not _are_alike(gradient, result) or dtype != gradient.dtype or not -result.dim() <= dim < result.dim():
        return NotImplemented
    is_row_major = op is aten._softmax_backward_data.default
    return _empty(result, result.shape, None if is_row_major else compat.elementwise_strides(gradient, result))


def _batch_norm(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    names = [argument.name for argument in compat.schema_of(op).arguments]
    named = {"running_mean": None, "running_var": None, "training": False, **dict(zip(names, args)), **kwargs}
    x, channels, training = named["input"], named["input"].shape[1:2], named["training"]
    running = _given(named["running_mean"], named["running_var"])
    if not x.dtype.is_floating_point or (not training and len(running) < 2):
        return NotImplemented
    if not _have_shape([*_given(named["weight"], named["bias"]), *running], channels):
        return NotImplemented
    statistics = channels if training or x.device.type != "cpu" else [0]
    dtype = _dtype_of_statistics(x)
    results = [_empty(x, x.shape, compat.elementwise_strides(x)), *(_empty(x, statistics, dtype=dtype) for _ in "mv")]
    if op is aten._native_batch_norm_legit_functional.default:
        results += map(torch.empty_like, running)
    return tuple(results)


def _batch_norm_gradients(op: OpOverload, gradient: Tensor, x: Tensor, weight: Tensor | None, *args: Any) -> Any:
    *statistics, training, _, (_, of_weight, of_bias) = args
    channels, read = x.shape[1:2], statistics[2:] if training else statistics[:2]
    if any(each is None for each in read) or not _have_shape([*_given(weight), *read], channels):
        return NotImplemented
    if not _are_alike(gradient, x):
        return NotImplemented
    like = x if weight is None else weight
    return (
        _empty(x, x.shape, compat.elementwise_strides(gradient, x)),
        _empty(like, channels) if of_weight else None,
        _empty(like, channels) if of_bias else None,
    )


def _layer_norm(
    op: OpOverload, x: Tensor, shape: Sequence[Any], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    outer = x.dim() - len(shape)
    if not x.dtype.is_floating_point or not shape or outer < 0:
        return NotImplemented
    if not _have_shape(_given(weight, bias), shape) or not _are_same(x.shape[outer:], shape):
        return NotImplemented
    dtype = x.dtype if x.device.type == "cpu" else _dtype_of_statistics(x)
    statistics = [*x.shape[:outer], *[1] * len(shape)]
    return (_empty(x, x.shape), *(_empty(x, statistics, dtype=dtype) for _ in "mv"))


def _layer_norm_gradients(
    op: OpOverload,
    gradient: Tensor,
    x: Tensor,
    shape: Sequence[Any],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    needed: Sequence[bool],
) -> Any:
    if not _are_alike(gradient, x) or not _have_shape(_given(weight, bias), shape) or 0 in _numbers(x.shape):
        return NotImplemented
    return (
        _empty(x, x.shape) if needed[0] else None,
        _empty(weight, shape) if needed[1] and weight is not None else None,
        _empty(bias, shape) if needed[2] and bias is not None else None,
    )


def _group_norm(
    op: OpOverload,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: Any,
    channels: Any,
    inner: Any,
    groups: int,
    eps: float,
) -> Any:
    if not x.dtype.is_floating_point or not _is_grouped(x, batch, channels, groups):
        return NotImplemented
    if not _have_shape(_given(weight, bias), [channels]):
        return NotImplemented
    result = _empty(x, x.shape, compat.elementwise_strides(x) if x.device.type == "cpu" else None)
    return (result, _empty(x, [batch, groups]), _empty(x, [batch, groups]))


def _group_norm_gradients(
    op: OpOverload,
    gradient: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    batch: Any,
    channels: Any,
    inner: Any,
    groups: int,
    needed: Sequence[bool],
) -> Any:
    if x.device.type != "cpu" or not _are_alike(gradient, x) or not _is_grouped(x, batch, channels, groups):
        return NotImplemented
    if not _have_shape(_given(weight), [channels]) or any(t.dtype != x.dtype for t in (mean, rstd, *_given(weight))):
        return NotImplemented
    shapes = (x.shape, [channels], [channels])
    return tuple(_empty(x, shape) if is_needed else None for shape, is_needed in zip(shapes, needed))


def _is_grouped(x: Tensor, batch: Any, channels: Any, groups: int) -> bool:
    sizes = x.dim() > 1 and compat.are_same(x.shape[0], batch) and compat.are_same(x.shape[1], channels)
    return sizes and isinstance(channels, int) and channels % groups == 0


def _given(*tensors: Tensor | None) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor is not None]


def _numbers(sizes: Sequence[Any]) -> list[int]:
    return [size for size in sizes if isinstance(size, int)]


def _are_alike(one: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors have the same floating-point dtype, and the same shape for all sizes."""
    return one.dtype == other.dtype and one.dtype.is_floating_point and _have_shape([one], other.shape)


def _have_shape(tensors: Sequence[Tensor], shape: Sequence[Any]) -> bool:
    """Returns whether all tensors have this shape for all values of the symbols."""
    return all(_are_same(tensor.shape, shape) for tensor in tensors)


def _are_same(shape: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(shape) == len(other) and all(map(compat.are_same, shape, other))


def _dtype_of_statistics(x: Tensor) -> torch.dtype:
    return torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype


def _empty(
    like: Tensor, shape: Sequence[Any], strides: Sequence[Any] | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Returns a tensor with the strides, or row-major, and with the dtype and device of another."""
    dtype = dtype or like.dtype
    if strides is None:
        return torch.empty(shape, dtype=dtype, device=like.device)
    return torch.empty_strided(shape, strides, dtype=dtype, device=like.device)


_ACTIVATIONS = (
    "elu",
    "gelu",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "leaky_relu",
    "mish",
    "relu",
    "sigmoid",
    "silu",
    "softplus",
    "tanh",
)
_GRADIENTS = (*(f"{name}_backward" for name in _ACTIVATIONS if name != "relu"), "threshold_backward")

META_FUNCTIONS: dict[OpOverload, Callable[..., Any]] = {
    **{getattr(aten, name).default: _elementwise for name in _ACTIVATIONS},
    **{getattr(aten, name).default: _elementwise_gradient for name in _GRADIENTS},
    aten._log_softmax.default: _log_softmax,
    aten._log_softmax_backward_data.default: _softmax_gradient,
    aten._softmax_backward_data.default: _softmax_gradient,
    aten.native_batch_norm.default: _batch_norm,
    aten._native_batch_norm_legit.default: _batch_norm,
    aten._native_batch_norm_legit.no_stats: _batch_norm,
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten._native_batch_norm_legit_no_training.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_gradients,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_gradients,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_gradients,
}
"""Each function takes the operation and its arguments, and returns the operation's result; NotImplemented leaves the
call to torch."""
