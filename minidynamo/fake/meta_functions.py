"""Owns meta functions (results of operations on tensors without data) for symbolic sizes, where torch's accept only
numbers.

torch calls C++, or runs the operation on zeros. With symbols, torch decomposes such operations; the components need
more memory and round differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from minidynamo import compat
from minidynamo.compat import OpOverload
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

    given = torch.empty_strided(hinted([*x.shape]), hinted([*x.stride()]), dtype=x.dtype, device="meta")
    strides = op(given, *hinted(args), **kwargs).stride()
    order = sorted(range(len(shape)), key=lambda k: (-strides[k], k))
    return torch.empty_permuted(shape, order, dtype=x.dtype, device=x.device)


META_FUNCTIONS: dict[OpOverload, Callable[..., Tensor]] = {
    aten.hardshrink_backward.default: _of_elements,
    aten.softshrink_backward.default: _of_elements,
    aten.multi_margin_loss_backward.default: _row_major,
    aten.multilabel_margin_loss_backward.default: _row_major,
    **{op.default: _interpolated for op in compat.INTERPOLATIONS},
    **{getattr(aten, f"{op.__name__}_backward").default: _gradient for op in compat.INTERPOLATIONS},
}
"""Each function takes the operation and its arguments, and returns the operation's result."""
