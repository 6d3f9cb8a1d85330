"""Owns the formulas of operations that torch's own table of decompositions computes otherwise than its kernels do.

They differ where a kernel rounds half types after each step, in what becomes of NaN, and in what overflows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minidynamo.compat import OpOverload

aten = torch.ops.aten

_MEAN, _SUM = 1, 2  # how ATen numbers reductions


def _in_float(formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`formula`, computed in float32 and rounded once for half types."""

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


def _mse_loss(x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    difference = x - target
    return _reduced(difference * difference, reduction)


def _soft_margin_loss(x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    return _reduced(torch.log1p(torch.exp(-x * target)), reduction)


def _soft_margin_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int = _MEAN) -> Tensor:
    z = torch.exp(-target * x)
    return target * z * (-1.0 / x.numel() if reduction == _MEAN else -1.0) / (z + 1) * grad


def _mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    norm = torch.full((), 2.0 / x.numel() if reduction == _MEAN else 2.0, dtype=x.dtype, device=x.device)
    return norm * (x - target) * grad


@_in_float
def _smooth_l1_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    difference = x - target
    scaled = (1.0 / x.numel() if reduction == _MEAN else 1.0) * grad
    return torch.where(difference.abs() >= beta, scaled * torch.sign(difference), scaled * difference / beta)


def _glu_backward(grad: Tensor, x: Tensor, dim: int) -> Tensor:
    value, gate = x.chunk(2, dim)
    open_gate = torch.sigmoid(gate)
    return torch.cat([open_gate * grad, (1 - open_gate) * open_gate * value * grad], dim)


@_in_float
def _elu_backward(grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: Tensor) -> Tensor:
    below = alpha * scale
    slope = x + below if is_result else below * torch.exp(x * input_scale)
    return torch.where(x > 0, grad * scale, grad * input_scale * slope)


@_in_float
def _hardswish_backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where(x <= -3, 0.0, torch.where(x >= 3, grad, grad * (x / 3 + 0.5)))


@_in_float
def _hardtanh_backward(grad: Tensor, x: Tensor, low: float, high: float) -> Tensor:
    return torch.where((x > low) & (x < high), grad, 0.0)


EVERYWHERE: dict[OpOverload, Callable[..., Any]] = {
    aten.mse_loss.default: _mse_loss,
    aten.mse_loss_backward.default: _mse_loss_backward,
    aten.smooth_l1_loss_backward.default: _smooth_l1_loss_backward,
    aten.soft_margin_loss.default: _soft_margin_loss,
    aten.soft_margin_loss_backward.default: _soft_margin_loss_backward,
}

ON_CPU: dict[OpOverload, Callable[..., Any]] = {
    aten.elu_backward.default: _elu_backward,
    aten.glu_backward.default: _glu_backward,
    aten.hardswish_backward.default: _hardswish_backward,
    aten.hardtanh_backward.default: _hardtanh_backward,
}
"""Those whose kernels for vectors on a CPU are written otherwise than the ones for a GPU."""


def as_kernels_do(op: OpOverload, split: Callable[..., Any]) -> Callable[..., Any]:
    """`split`, or what the kernel of `op` computes where that is something else."""
    formula, on_cpu = EVERYWHERE.get(op), ON_CPU.get(op)
    if formula is None and on_cpu is None:
        return split

    def chosen(*args: Any, **kwargs: Any) -> Any:
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        mixed = len({t.dtype for t in tensors}) > 1
        mine = on_cpu if formula is None and tensors[0].device.type == "cpu" else formula
        return (split if mixed or mine is None else mine)(*args, **kwargs)

    return chosen
