"""Owns the gradients that torch computes or lays out otherwise where there is no data, as it has them for data.

While a graph is traced its tensors have no data. Which value a formula of these works on is in the graph instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from minidynamo import compat


def _shared_by_equals(function: Any, _: Tensor, gradient: Tensor) -> Tensor:
    """Of a value chosen among all: the gradient in equal parts for each element that is the value. The others get none,
    whatever the gradient is."""
    values, chosen = function._saved_self, function._saved_result
    is_chosen = (values == chosen) | (values.isnan() & chosen.isnan())
    zeros = torch.zeros(values.shape, dtype=values.dtype, device=values.device)
    return zeros.masked_fill(is_chosen, gradient / is_chosen.sum())


def _laid_out_as_input(function: Any, made: Tensor, _: Tensor) -> Tensor:
    """What is joined from columns where there is no data, and where there is written into a tensor like the input."""
    given = function._saved_self if function.name() == "OrmqrBackward0" else function._saved_input
    like = torch.empty_like(given)
    return made if made.stride() == like.stride() else like.copy_(made)


FORMULAS: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    **dict.fromkeys(("MaxBackward1", "MinBackward1", "MedianBackward0", "NanmedianBackward0"), _shared_by_equals),
    **dict.fromkeys(("LinalgHouseholderProductBackward0", "OrmqrBackward0"), _laid_out_as_input),
}
"""By the name of a gradient function: what it returns first, of itself, what it does return, and the gradient given."""


def corrected(function: Any, made: tuple[Any, ...], given: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What a gradient function returns that has `made` gradients of those `given`; None where it is right."""
    name = compat.name_of(function)
    if name not in FORMULAS or made[0] is None or given[0] is None:
        return None
    return (FORMULAS[name](function, made[0], given[0]), *made[1:])
