"""Owns subscripts of tensors by tensors that hold one integer: `x[i]` is the view that `x[i.item()]` is.

Without data, every place gives a view alike: `at_first_places` chooses the first. Where the numbers are symbols, which
torch takes in no subscript, `run_with_places` selects one place after the other. With data, `place_of` reads the
number, and checks it.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from minidynamo.compat import constant_behind

_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)  # uint8, like bool, is a mask
_MASKS = (torch.bool, torch.uint8)
_ALL = slice(None)

SUBSCRIPTS = (operator.getitem, operator.setitem)
"""What reads or writes elements of a tensor that a key chooses."""

PlaceReader = Callable[[torch.Tensor, Any, int], Any]
"""Gives the number in an index, for a dimension of a size; the last number is its position in the subscript."""


def at_first_places(target: Any, args: Sequence[Any]) -> Sequence[Any]:
    """The arguments of a call, with the first place for each that a tensor holds, if it is a subscript by such."""
    if not _reads_places(target, args):
        return args
    items = _items(args[1])
    return [args[0], tuple(0 if _is_place(item) else item for item in items), *args[2:]]


def reads_places(node: torch.fx.Node) -> bool:
    """Whether a node of a torch-level graph is a subscript by places."""
    args = torch.fx.map_arg(node.args, lambda given: given.meta.get("example_value", given))
    return _reads_places(node.target, args)


def run_with_places(target: Any, args: Sequence[Any], read: PlaceReader) -> Any:
    """What a subscript by places gives, or NotImplemented for any other call.

    Items that give views are applied from left to right, as in torch, and tensors among them come last.
    """
    if not _reads_places(target, args):
        return NotImplemented
    part, *value = args[0], *args[2:]
    basic: list[Any] = []
    places: list[tuple[int, Any]] = []  # each as a dimension of what those before it leave, and a number
    left: list[Any] = []  # what is to be done to the dimensions that are there then
    shown = 0
    for position, (item, (dim, end)) in enumerate(zip(_items(args[1]), dimensions(args) or ())):
        if _is_place(item):
            basic.append(_ALL)
            places.append((shown, read(item, part.shape[dim], position)))
        elif isinstance(item, torch.Tensor):
            basic += [_ALL] * (end - dim)
            left.append(item)
            shown += end - dim
        else:
            basic.append(item)
            more = 1 if item is None else 0 if isinstance(item, (int, torch.SymInt)) else end - dim
            left += [_ALL] * more
            shown += more
    if any(item is not ... and item != _ALL for item in basic):
        part = part[tuple(basic)]
    for dim, place in places:
        part = part.select(dim, place)
    key = ... if all(item is _ALL for item in left) else tuple(left)
    if target is operator.setitem:
        return operator.setitem(part, key, *value)
    return part if key is ... else part[key]


def place_of(index: torch.Tensor, size: int, position: int) -> int:
    """The place that an index chooses, counted from the start of its dimension."""
    place = int(index)
    if not -size <= place < size:  # in torch's words, which take the position for the dimension
        raise IndexError(f"index {place} is out of bounds for dimension {position} with size {size}")
    return place + size if place < 0 else place


def dimensions(args: Sequence[Any]) -> list[tuple[int, int]] | None:
    """The range of dimensions that each item of a subscript is about; None where that is not known here."""
    taken = [None if item is ... else _taken(item) for item in _items(args[1])]
    rest = args[0].dim() - sum(number for number in taken if number is not None)
    if taken.count(None) > 1 or -1 in taken or rest < 0:
        return None
    ends = list(itertools.accumulate(rest if number is None else number for number in taken))
    return list(zip([0, *ends], ends))


def _reads_places(target: Any, args: Sequence[Any]) -> bool:
    """Whether a call is a subscript by places that is understood here; what others mean, torch says."""
    if target not in SUBSCRIPTS or not isinstance(args[0], torch.Tensor) or args[0].layout is not torch.strided:
        return False
    return any(map(_is_place, _items(args[1]))) and dimensions(args) is not None


def _items(key: Any) -> Sequence[Any]:
    return key if isinstance(key, tuple) else (key,)


def _is_place(item: Any) -> bool:
    """Whether torch reads the number in an index while the program runs. What a fake one is known to hold, it knows."""
    if not isinstance(item, torch.Tensor) or item.dim() or item.dtype not in _INTEGERS:
        return False
    return item.layout is torch.strided and constant_behind(item) is None


def _taken(item: Any) -> int:
    """How many dimensions an item of a key is about; -1 where that is not known."""
    if isinstance(item, torch.Tensor):
        return 1 if item.dtype not in _MASKS else item.dim() or -1
    if isinstance(item, slice):
        return -1 if any(isinstance(part, torch.Tensor) for part in (item.start, item.stop, item.step)) else 1
    return 0 if item is None else 1 if type(item) in (int, torch.SymInt) else -1
