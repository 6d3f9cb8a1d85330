"""Owns meta functions (results of operations on tensors without data) for symbolic sizes, where torch's accept only
numbers; and the argument dtypes with which autograd calls torch's gradient operators.

torch calls C++, or runs the operation on zeros. With symbols, torch decomposes such operations; the components need
more memory and round differently. A program may call gradient operators with other dtypes than autograd: torch then
raises, or returns another dtype than the component operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from minidynamo import compat
from minidynamo.compat import OpOverload
from minidynamo.fake import normalizations
from minidynamo.fake.views import view
from minidynamo.graph.unbacked_symints import hint_of

aten = torch.ops.aten


def _of_elements(op: OpOverload, gradient: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    strides = compat.elementwise_strides(gradient, x)
    return torch.empty_strided(x.shape, strides, dtype=gradient.dtype, device=gradient.device)


def _row_major(op: OpOverload, gradient: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _interpolated(op: OpOverload, x: Tensor, sizes: Sequence[Any], *args: Any, **kwargs: Any) -> Tensor:
    return _with_hinted_order([*x.shape[:2], *sizes], op, x, sizes, *args, **kwargs)


def _gradient(
    op: OpOverload, x: Tensor, sizes: Sequence[Any], shape: Sequence[Any], *args: Any, **kwargs: Any
) -> Tensor:
    return _with_hinted_order(shape, op, x, sizes, shape, *args, **kwargs)


def _with_hinted_order(shape: Sequence[Any], op: OpOverload, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Returns a tensor of the given shape, with the order of dimensions that `op` produces for the sizes of the
    compiled call.
    """

    def hinted(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [*map(hinted, value)]
        # Only for the layout: the operator runs on tensors without data, for its strides.
        return hint_of(value) if isinstance(value, torch.SymInt) else value

    example = torch.empty_strided(hinted([*x.shape]), hinted([*x.stride()]), dtype=x.dtype, device="meta")
    strides = op(example, *hinted(args), **kwargs).stride()
    order = sorted(range(len(shape)), key=lambda k: (-strides[k], k))
    return torch.empty_permuted(shape, order, dtype=x.dtype, device=x.device)


META_FUNCTIONS: dict[OpOverload, Callable[..., Any]] = {
    **normalizations.META_FUNCTIONS,
    aten.view.default: view,
    aten._unsafe_view.default: view,
    aten.hardshrink_backward.default: _of_elements,
    aten.softshrink_backward.default: _of_elements,
    aten.multi_margin_loss_backward.default: _row_major,
    aten.multilabel_margin_loss_backward.default: _row_major,
    **{op.default: _interpolated for op in compat.INTERPOLATIONS},
    **{getattr(aten, f"{op.__name__}_backward").default: _gradient for op in compat.INTERPOLATIONS},
}
"""Each function takes the operation and its arguments, and returns the operation's result; NotImplemented leaves the
call to torch."""


# Operator -> position of each argument that is no floating-point tensor -> dtype: masks and classes.
MASKS_AND_CLASSES: Mapping[str, Mapping[int, torch.dtype]] = {
    "native_dropout_backward": {1: torch.bool},
    "nll_loss_backward": {2: torch.int64},
    "nll_loss2d_backward": {2: torch.int64},
}
# Operator -> positions of statistics from forward, which a GPU keeps in float32 for half types.
STATISTICS = {"native_layer_norm_backward": (3, 4)}


def has_dtypes_of_autograd(name: str, args: Sequence[Any]) -> bool:
    """Returns whether the tensors among `args` have dtypes with which autograd calls the operator: one floating-point
    dtype, except for masks, classes and statistics.
    """
    others, statistics = MASKS_AND_CLASSES.get(name, {}), STATISTICS.get(name, ())
    tensors = {i: arg for i, arg in enumerate(args) if isinstance(arg, torch.Tensor)}
    if any(tensors[i].dtype != dtype for i, dtype in others.items() if i in tensors):
        return False
    wide = {i for i in statistics if i in tensors and _may_be_wide(tensors[i])}
    dtypes = {tensor.dtype for i, tensor in tensors.items() if i not in others and i not in wide}
    return len(dtypes) <= 1 and all(dtype.is_floating_point for dtype in dtypes)


def _may_be_wide(statistic: torch.Tensor) -> bool:
    return statistic.device.type != "cpu" and statistic.dtype == torch.float32
