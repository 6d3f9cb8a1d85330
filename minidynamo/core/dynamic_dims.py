"""Owns what a user has declared of the dimensions of a tensor: that they vary from call to call, or never do.

It decides nothing by it; `guards/shapes.py` does. `directives.py` has the functions that users call.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# The attribute of a tensor that holds its declarations, by dimension.
_ATTRIBUTE = "__minidynamo_dimensions__"


@dataclass(frozen=True)
class Dimension:
    """What is declared of a dimension: whether it varies, and within which bounds."""

    varies: bool
    least: int | None = None
    most: int | None = None


def declare(tensor: torch.Tensor, dim: int, dimension: Dimension) -> None:
    """Remember a declaration with the tensor; it replaces an older one."""
    tensor.__dict__.setdefault(_ATTRIBUTE, {})[dim] = dimension


def declared(tensor: torch.Tensor) -> dict[int, Dimension]:
    """The declarations of a tensor, those that were made with the functions of torch included."""
    attributes = tensor.__dict__
    found = dict.fromkeys(attributes.get("_dynamo_dynamic_indices", ()), Dimension(True))
    found |= dict.fromkeys(attributes.get("_dynamo_static_indices", ()), Dimension(False))
    found |= attributes.get(_ATTRIBUTE, {})
    return found
