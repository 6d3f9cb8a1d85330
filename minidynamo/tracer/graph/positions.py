"""Owns the positions that operations look up, so that a check before the graph runs can find positions out of range.

Operations that may raise for other reasons are not here (`dead_code.py`), nor is the check (`written_places.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

_INTEGERS = (torch.int32, torch.int64)

Range = tuple[torch.fx.Node, int, int]
"""A tensor of positions, the first valid position, and the end of the valid positions (exclusive)."""


def positions_of(node: torch.fx.Node) -> list[Range] | None:
    """Returns the positions that must exist for an operation to raise nothing.

    None if that is unknown, or if errors depend on more than positions."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    find = _FINDERS.get(name.rstrip("_"))
    try:
        ranges = None if find is None else find(*node.args, **node.kwargs)
    except (TypeError, AttributeError, IndexError, KeyError):  # called in an unusual way
        return None
    known = ranges is not None and all(_is_known(*each) for each in ranges)
    return ranges if known else None


def _is_known(index: Any, first: Any, end: Any) -> bool:
    return type(first) is int and type(end) is int and _value(index).dtype in _INTEGERS


def _value(node: Any) -> torch.Tensor:
    value = node.meta["example_value"]
    assert isinstance(value, torch.Tensor)
    return value


def _along(x: Any, dim: int, index: Any, *rest: Any, **named: Any) -> list[Range]:
    return [(index, 0, _value(x).shape[dim])]


def _embedding(index: Any, weight: Any, *rest: Any, **named: Any) -> list[Range]:
    return [(index, 0, _value(weight).shape[0])]


def _classes(x: Any, target: Any, *rest: Any, **named: Any) -> list[Range]:
    shape = _value(x).shape
    return [(target, 0, shape[1] if len(shape) > 1 else shape[0])]


def _subscript(x: Any, key: Any, *rest: Any) -> list[Range] | None:
    found, shape = [], _value(x).shape
    parts = key if isinstance(key, tuple) else (key,)
    for dim, part in enumerate(part for part in parts if part is not None):
        if isinstance(part, torch.fx.Node):
            if isinstance(part.meta["example_value"], torch.Tensor):
                found.append((part, -shape[dim], shape[dim]))
        elif not isinstance(part, int | slice) or isinstance(part, bool):
            return None
    return found


def _indices(x: Any, indices: Any, *rest: Any) -> list[Range] | None:
    return _subscript(x, tuple(indices))


def _quotient(x: Any, divisor: Any) -> list[Range] | None:
    return [] if type(divisor) is int and divisor else None


def _repeats(x: Any, repeats: Any, *rest: Any, **named: Any) -> list[Range] | None:
    return [] if type(repeats) is int else None


_FINDERS: dict[str, Callable[..., list[Range] | None]] = {
    **dict.fromkeys(("gather", "index_select", "index_add", "index_copy", "index_fill", "index_reduce"), _along),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_reduce"), _along),
    **dict.fromkeys(("getitem", "setitem"), _subscript),
    **dict.fromkeys(("cross_entropy", "nll_loss"), _classes),
    **dict.fromkeys(("floordiv", "floor_divide", "mod", "remainder"), _quotient),
    "embedding": _embedding,
    "repeat_interleave": _repeats,
    "index_put": _indices,
}
