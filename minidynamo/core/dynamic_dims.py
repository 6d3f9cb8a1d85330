"""Owns a user's declarations about the dimensions of a tensor: varying from call to call, or fixed.

`guards/shapes.py` applies the declarations. `directives.py` has the functions that users call.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# The attribute of a tensor for declarations, by dimension.
_ATTRIBUTE = "__minidynamo_dimensions__"


@dataclass(frozen=True)
class Dimension:
    """The declaration of a dimension."""

    #: whether the size varies
    varies: bool
    #: the smallest size; None without bound
    least: int | None = None
    #: the greatest size; None without bound
    most: int | None = None


def declare(tensor: torch.Tensor, dim: int, dimension: Dimension) -> None:
    """Stores a declaration with the tensor, and replaces an older declaration."""
    tensor.__dict__.setdefault(_ATTRIBUTE, {})[dim] = dimension


def declared(tensor: torch.Tensor) -> dict[int, Dimension]:
    """Returns the declarations of a tensor by dimension, including declarations by torch's functions."""
    attributes = tensor.__dict__
    found = dict.fromkeys(attributes.get("_dynamo_dynamic_indices", ()), Dimension(True))
    found |= dict.fromkeys(attributes.get("_dynamo_static_indices", ()), Dimension(False))
    found |= attributes.get(_ATTRIBUTE, {})
    return found
