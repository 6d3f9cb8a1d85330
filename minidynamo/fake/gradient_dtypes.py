"""Owns the argument dtypes with which autograd calls torch's gradient operators.

A program may call the operators with other dtypes: torch then raises, or returns another dtype than the component
operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

# Operator -> position of each argument that is no floating-point tensor -> dtype: masks and classes.
OTHERS: Mapping[str, Mapping[int, torch.dtype]] = {
    "native_dropout_backward": {1: torch.bool},
    "nll_loss_backward": {2: torch.int64},
    "nll_loss2d_backward": {2: torch.int64},
}
# Operator -> positions of statistics from forward, which a GPU keeps in float32 for half types.
STATISTICS = {"native_layer_norm_backward": (3, 4)}


def are_of_autograd(name: str, args: Sequence[Any]) -> bool:
    """Returns whether the tensors among `args` have dtypes with which autograd calls the operator: one floating-point
    dtype, except for masks, classes and statistics.
    """
    others, statistics = OTHERS.get(name, {}), STATISTICS.get(name, ())
    tensors = {i: arg for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)}
    if any(tensors[i].dtype != dtype for i, dtype in others.items() if i in tensors):
        return False
    wide = {i for i in statistics if i in tensors and _may_be_wide(tensors[i])}
    dtypes = {tensor.dtype for i, tensor in tensors.items() if i not in others and i not in wide}
    return len(dtypes) <= 1 and all(dtype.is_floating_point for dtype in dtypes)


def _may_be_wide(statistic: torch.Tensor) -> bool:
    return statistic.device.type != "cpu" and statistic.dtype == torch.float32
