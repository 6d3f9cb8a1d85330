"""Owns slices that take a whole dimension, as the first one of `x[:, 0]`, where sizes are symbolic: they take nothing.

Of a key of several items, torch leaves such slices out where a size is a number. Of a symbolic one it does not see that
it is less than the largest number, which stands for the end, and so each of them would have a gradient: a tensor of
zeros, and a copy. It does see that a size is not above itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from minidynamo.graph.tensor_index import SUBSCRIPTS, dimensions


def with_ends(target: Any, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments of a call; of a subscript, with slices that say where the dimension ends if they take all of it."""
    if target not in SUBSCRIPTS or type(args[1]) is not tuple or not isinstance(args[0], torch.Tensor):
        return args
    shape, key = args[0].shape, [*args[1]]
    places = [place for place, item in enumerate(key) if _takes_all(item)]
    ranges = dimensions([args[0], tuple(slice(None) if _is_list(item) else item for item in key)]) if places else None
    if ranges is None:
        return args
    for place in places:
        size = shape[ranges[place][0]]
        key[place] = slice(None, size) if isinstance(size, torch.SymInt) else key[place]
    return [args[0], tuple(key), *args[2:]]


def _takes_all(item: Any) -> bool:
    return isinstance(item, slice) and _is(item.start, 0) and item.stop is None and _is(item.step, 1)


def _is(number: Any, usual: int) -> bool:
    return number is None or (type(number) is int and number == usual)


def _is_list(item: Any) -> bool:
    """Whether an item chooses along one dimension, by a list of places."""
    return isinstance(item, list) and all(type(place) is int for place in item)
