"""Owns formulas for operations that torch's decompositions compute differently from torch's kernels.

The results differ if a kernel rounds half types after each step, for NaN, and on overflow.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minidynamo.compat import OpOverload

aten = torch.ops.aten

_MEAN, _SUM = 1, 2  # how ATen numbers reductions


def _in_float(formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wraps `formula`: half types are computed in float32 and rounded once."""

    @functools.wraps(formula)
    def wider(*args: Any, **kwargs: Any) -> Tensor:
        dtype = next(arg.dtype for arg in args if isinstance(arg, Tensor))
        if dtype.itemsize != 2:
            return formula(*args, **kwargs)
        wide = (arg.float() if isinstance(arg, Tensor) else arg for arg in args)
        return formula(*wide, **kwargs).to(dtype)

    return wider


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    return loss.mean() if reduction == _MEAN else loss.sum() if reduction == _SUM else loss


def _norm(x: Tensor, reduction: int, of_sum: float = 1.0) -> Tensor:
    """Returns the factor of a loss gradient, in the dtype of the elements, as the kernels do."""
    norm = of_sum / x.numel() if reduction == _MEAN else of_sum
    return torch.full((), norm, dtype=x.dtype, device=x.device)


def _mse_loss(x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    difference = x - target
    return _reduced(difference * difference, reduction)


def _soft_margin_loss(x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    return _reduced(torch.log1p(torch.exp(-x * target)), reduction)


def _soft_margin_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    z = torch.exp(-target * x)
    return target * z * -_norm(x, reduction) / (z + 1) * grad


def _mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    return _norm(x, reduction, 2.0) * (x - target) * grad


@_in_float
def _smooth_l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    difference = x - target
    slope = torch.where(difference.abs() >= beta, torch.sign(difference), difference / beta)
    return slope * (1.0 / x.numel() if reduction == _MEAN else 1.0) * grad


def _huber_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    difference, norm = x - target, _norm(x, reduction)
    return torch.clamp(difference, -delta, delta) * norm * grad


def _binary_cross_entropy_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = _MEAN
) -> Tensor:
    slope = (x - target) * grad / torch.clamp((1 - x) * x, min=1e-12)
    slope = slope if weight is None else slope * weight
    return slope / x.numel() if reduction == _MEAN else slope


def _logit_backward(grad: Tensor, x: Tensor, eps: float | None = None) -> Tensor:
    low, high, outside = (0.0, 1.0, math.nan) if eps is None else (eps, 1.0 - eps, 0.0)
    return torch.where((x >= low) & (x <= high), grad / (x * (1 - x)), outside)


def _glu_backward(grad: Tensor, x: Tensor, dim: int) -> Tensor:
    value, gate = x.chunk(2, dim)
    open_gate = torch.sigmoid(gate)
    return torch.cat([open_gate * grad, _through_gate(open_gate, value, grad)], dim)


@_in_float
def _through_gate(open_gate: Tensor, value: Tensor, grad: Tensor) -> Tensor:
    return (1 - open_gate) * open_gate * value * grad


@_in_float
def _elu_backward(grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: Tensor) -> Tensor:
    below = alpha * scale if x.dtype == torch.float64 else _single(_single(alpha) * _single(scale))
    inner = grad * input_scale
    return torch.where(
        x > 0, grad * scale, inner * (x + below) if is_result else inner * below * torch.exp(x * input_scale)
    )


def _single(number: float) -> float:
    """Rounds `number` to float32."""
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded


@_in_float
def _hardsigmoid_backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where((x > -3) & (x < 3), grad * _single(1 / 6), 0.0)  # the constant is a float32 for doubles as well


@_in_float
def _hardswish_backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where(x <= -3, 0.0, torch.where(x >= 3, grad, grad * (x / 3 + 0.5)))


@_in_float
def _hardtanh_backward(grad: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    return torch.where((x > low) & (x < high), grad, 0.0)


def nll_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: int,
    total_weight: Tensor,
) -> Tensor:
    """Computes a gradient that is zero except at the targets, also if the gradient is negative, infinite or NaN."""
    along = 0 if x.dim() < 2 else 1
    shape = [-1 if d == along else 1 for d in range(x.dim())]
    target = (target.reshape(()) if x.dim() == 1 else target).unsqueeze(along)
    grad = grad / total_weight if reduction == _MEAN else grad
    grad = -(grad.unsqueeze(along) if x.dim() > grad.dim() > 0 else grad)
    grad = grad if weight is None else grad * weight.view(shape)
    classes = torch.arange(x.shape[along], device=x.device).view(shape)
    return torch.where((classes == target) & (target != ignored), grad, 0.0).contiguous()


EVERYWHERE: dict[OpOverload, Callable[..., Any]] = {
    aten.mse_loss.default: _mse_loss,
    aten.mse_loss_backward.default: _mse_loss_backward,
    aten.smooth_l1_loss_backward.default: _smooth_l1_loss_backward,
    aten.soft_margin_loss.default: _soft_margin_loss,
    aten.soft_margin_loss_backward.default: _soft_margin_loss_backward,
}

ON_CPU: dict[OpOverload, Callable[..., Any]] = {
    aten.binary_cross_entropy_backward.default: _binary_cross_entropy_backward,
    aten.elu_backward.default: _elu_backward,
    aten.glu_backward.default: _glu_backward,
    aten.hardsigmoid_backward.default: _hardsigmoid_backward,
    aten.hardswish_backward.default: _hardswish_backward,
    aten.hardtanh_backward.default: _hardtanh_backward,
    aten.huber_loss_backward.default: _huber_loss_backward,
    aten.logit_backward.default: _logit_backward,
}
"""Operations whose vectorized CPU kernels compute differently from the GPU kernels."""


def with_kernel_formula(op: OpOverload, split: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `split`, or the formula of the kernel of `op` if the results differ."""
    formula, on_cpu = EVERYWHERE.get(op), ON_CPU.get(op)
    if formula is None and on_cpu is None:
        return split

    def chosen(*args: Any, **kwargs: Any) -> Any:
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        mixed = len({t.dtype for t in tensors}) > 1
        mine = on_cpu if formula is None and tensors[0].device.type == "cpu" else formula
        return (split if mixed or mine is None else mine)(*args, **kwargs)

    return chosen
