"""Owns the walks over nested arguments and results of operations: which tensors, and which nodes of a graph, are there.

How such a value is built, and whether a call's value is built alike, is in `structure.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import fx


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Each tensor among nested values, as often as it is there."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, slice):
        yield from tensors_in([value.start, value.stop, value.step])


def nodes_in(value: Any) -> list[fx.Node]:
    """Each node among nested values, as often as it is there."""
    found: list[fx.Node] = []
    fx.map_arg(value, found.append)
    return found
