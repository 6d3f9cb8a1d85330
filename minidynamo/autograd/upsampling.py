"""Owns `interpolate` where sizes are symbolic and torch's parts are not its kernel: it stays one call of that.

torch takes these operations apart in Python where a size varies. The parts of linear and cubic ones round otherwise.
The derivatives of nearest neighbours on one and three axes do not read the factor, and the parts do. Which calls come
here is said in `plain_calls.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from minidynamo import compat
from minidynamo.autograd.numbers import has_symbols, is_symbolic
from minidynamo.compat import OpOverload
from minidynamo.numbers_in_data import hint_of
from minidynamo.own_operators import define

aten = torch.ops.aten

# By the mode, the number of dimensions, and whether aliasing is taken care of.
_KERNELS = {
    ("linear", 3, False): "upsample_linear1d",
    ("bilinear", 4, False): "upsample_bilinear2d",
    ("bilinear", 4, True): "_upsample_bilinear2d_aa",
    ("trilinear", 5, False): "upsample_trilinear3d",
    ("bicubic", 4, False): "upsample_bicubic2d",
    ("bicubic", 4, True): "_upsample_bicubic2d_aa",
    ("nearest", 3, False): "upsample_nearest1d",
    ("nearest", 5, False): "upsample_nearest3d",
}


def interpolated(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """`torch.nn.functional.interpolate`; NotImplemented where no size varies, and for what is no such interpolation."""
    kernel = _KERNELS.get((mode, input.dim(), bool(antialias)))
    if kernel is None or not has_symbols([input, *_each(size, 1)]) or (size is None) == (scale_factor is None):
        return NotImplemented
    if not input.is_cpu and torch.are_deterministic_algorithms_enabled():  # then torch itself takes it apart
        return NotImplemented
    count = input.dim() - 2
    given = _each(scale_factor if size is None else size, count)
    if len(given) != count or (size is not None and recompute_scale_factor):
        return NotImplemented
    scales: list[float | None] = [None] * count
    if size is not None:
        sizes = given
    elif any(map(is_symbolic, given)):
        return NotImplemented
    else:
        sizes = [torch.sym_int(there * factor) for there, factor in zip(input.shape[2:], given)]
        scales = scales if recompute_scale_factor else [float(factor) for factor in given]
    more = scales if mode == "nearest" else [bool(align_corners), *scales]
    return _Upsampled.apply(input, kernel, sizes, more)  # type: ignore[no-untyped-call]


def _each(value: Any, count: int) -> list[Any]:
    return [*value] if isinstance(value, (list, tuple)) else [value] * count


@functools.cache
def _whole(name: str) -> OpOverload:
    """The operator that does what one of ATen's does, and is not taken apart."""
    op: OpOverload = getattr(aten, name).default
    _, opening, rest = str(compat.schema_of(op)).partition("(")
    return define(f"whole_{name}", opening + rest, op, functools.partial(_without_data, op))


def _without_data(op: OpOverload, given: Tensor, *sizes: Any) -> Tensor:
    """What the operator gives, without data, laid out as it is for the sizes of the call that is being compiled for."""

    def here(value: Any) -> Any:
        if isinstance(value, Tensor):
            return torch.empty_strided(here([*value.shape]), here([*value.stride()]), dtype=value.dtype, device="meta")
        if isinstance(value, (list, tuple)):
            return [*map(here, value)]
        return hint_of(value) if isinstance(value, torch.SymInt) else value

    strides = op(*map(here, (given, *sizes))).stride()
    is_backward = "backward" in op.name()
    shape = [*sizes[1]] if is_backward else [*given.shape[:2], *sizes[0]]
    order = sorted(range(len(shape)), key=lambda k: (-strides[k], k))
    return torch.empty_permuted(shape, order, dtype=given.dtype, device=given.device)


class _Upsampled(torch.autograd.Function):
    """An interpolation. It is linear: its derivative hangs on no values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: str, sizes: Sequence[Any], more: Sequence[Any]) -> Any:
        ctx.facts = kernel, [*sizes], [*x.shape], more
        return _whole(kernel)(x, [*sizes], *more)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _UpsampledBackward.apply(gradient, *ctx.facts), None, None, None  # type: ignore[no-untyped-call]


class _UpsampledBackward(torch.autograd.Function):
    """The derivative of an interpolation, whose derivative is the interpolation."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, kernel: str, sizes: Sequence[Any], shape: Sequence[Any], more: Any) -> Any:
        ctx.facts = kernel, sizes, more
        return _whole(f"{kernel}_backward")(gradient, [*sizes], [*shape], *more)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        kernel, sizes, more = ctx.facts
        return _Upsampled.apply(gradient, kernel, sizes, more), None, None, None, None  # type: ignore[no-untyped-call]
