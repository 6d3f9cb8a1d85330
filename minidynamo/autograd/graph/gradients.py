"""Owns corrections of gradients that torch computes or lays out differently for tensors without data.

Traced tensors have no data. For such tensors the formula for tensors with data is traced here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minidynamo import compat


def _shared_by_equals(function: Any, _: Tensor, gradient: Tensor) -> Tensor:
    """Returns the gradient of a value chosen among all elements: equal parts for each element equal to the value, zero
    for the others."""
    values, chosen = function._saved_self, function._saved_result
    is_chosen = (values == chosen) | (values.isnan() & chosen.isnan())
    zeros = torch.zeros(values.shape, dtype=values.dtype, device=values.device)
    return zeros.masked_fill(is_chosen, gradient / is_chosen.sum())


def _laid_out_as_input(function: Any, returned: Tensor, _: Tensor) -> Tensor:
    """Returns the gradient in the layout of the input: with data torch writes into a tensor like the input, without
    data it joins columns."""
    tangents = function._saved_self if function.name() == "OrmqrBackward0" else function._saved_input
    like = torch.empty_like(tangents)
    return returned if returned.stride() == like.stride() else like.copy_(returned)


FORMULAS: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    **dict.fromkeys(("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"), _shared_by_equals),
    **dict.fromkeys(("LinalgHouseholderProductBackward0", "OrmqrBackward0"), _laid_out_as_input),
}
"""By name of a gradient function: computes its correct first gradient from the function, its own first gradient, and
its tangent."""


def correct(function: Any, returned: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Returns corrections of the gradients that a gradient function `returned` for `tangents`; None if the gradients
    are correct."""
    name = compat.name_of(function)
    if name not in FORMULAS or returned[0] is None or tangents[0] is None:
        return None
    return (FORMULAS[name](function, returned[0], tangents[0]), *returned[1:])
