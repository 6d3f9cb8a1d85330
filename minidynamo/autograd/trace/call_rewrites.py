"""Owns the explicit ends of slices while the joint graph is traced.

Torch drops slices of a whole dimension, such as the first slice of `x[:, 0]`, from a key of several items if the size
is a number. For a symbolic size torch cannot prove that the size is below the largest integer, the default end of a
slice. Each slice would then get a gradient: a tensor of zeros, and a copy. Torch can prove that a size is not above
itself, so the end is written into the slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from minidynamo.graph.unbacked_symints import SUBSCRIPTS, dimensions


def with_ends(target: Any, args: Sequence[Any]) -> Sequence[Any]:
    """Returns the arguments of a call; a subscript gets explicit ends in slices that take a whole dimension."""
    if target not in SUBSCRIPTS or type(args[1]) is not tuple or not isinstance(args[0], torch.Tensor):
        return args
    shape, key = args[0].shape, [*args[1]]
    positions = [position for position, item in enumerate(key) if _takes_all(item)]
    ranges = (
        dimensions([args[0], tuple(slice(None) if _is_list(item) else item for item in key)]) if positions else None
    )
    if ranges is None:
        return args
    for position in positions:
        size = shape[ranges[position][0]]
        key[position] = slice(None, size) if isinstance(size, torch.SymInt) else key[position]
    return [args[0], tuple(key), *args[2:]]


def _takes_all(item: Any) -> bool:
    return isinstance(item, slice) and _is(item.start, 0) and item.stop is None and _is(item.step, 1)


def _is(number: Any, usual: int) -> bool:
    return number is None or (type(number) is int and number == usual)


def _is_list(item: Any) -> bool:
    """Returns whether an item selects along one dimension by a list of positions."""
    return isinstance(item, list) and all(type(index) is int for index in item)
