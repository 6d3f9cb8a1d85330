"""Owns nested containers: their structure, their leaves, and the tensors and nodes inside.

`graph/func_transforms.py` and the hooks for saved tensors take values apart and rebuild them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx


@dataclass(frozen=True)
class Structure:
    """The structure of a nested value."""

    #: list, tuple, dict or a class of `torch.return_types`; None for a leaf
    kind: type | None = None
    #: the structures of the items, in order
    parts: tuple[Structure, ...] = ()
    #: the keys of a dict, in order
    keys: tuple[Any, ...] = ()


def is_sequence_class(cls: type) -> bool:
    """Returns whether values of the class are traversed item by item; the class then accepts a list of items."""
    return cls in (list, tuple) or cls.__module__ == "torch.return_types"


def structure_of(value: Any) -> Structure:
    """Returns the structure of a value. Only lists, tuples and dicts of exactly these classes, and named results of
    torch, are traversed.
    """
    if type(value) is dict:
        return Structure(dict, tuple(map(structure_of, value.values())), tuple(value))
    if is_sequence_class(type(value)):
        return Structure(type(value), tuple(map(structure_of, value)))
    return Structure()


def leaves(value: Any) -> list[Any]:
    """Lists the leaves of a value, in order."""
    if type(value) is dict:
        value = list(value.values())
    elif not is_sequence_class(type(value)):
        return [value]
    return [leaf for part in value for leaf in leaves(part)]


def rebuild(structure: Structure, flat: Sequence[Any]) -> Any:
    """Builds a value from structure and leaves."""
    return _rebuild(structure, list(reversed(flat)))


def _rebuild(structure: Structure, rest: list[Any]) -> Any:
    if structure.kind is None:
        return rest.pop()
    parts = [_rebuild(part, rest) for part in structure.parts]
    return dict(zip(structure.keys, parts)) if structure.kind is dict else structure.kind(parts)


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yields each tensor in nested values, once per occurrence."""
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
    """Lists each node in nested values, once per occurrence."""
    found: list[fx.Node] = []
    fx.map_arg(value, found.append)
    return found
