"""Owns the table from ATen operations to lowerings.

The lowerings are in the files next to this one; importing the package fills the table.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from minidynamo.codegen.lowering.values import Value
from minidynamo.compat import OpOverload

Lowering = Callable[..., Value | tuple[Value | None, ...]]
F = TypeVar("F", bound=Lowering)

LOWERINGS: dict[str, Lowering] = {}
"""ATen name without overload -> `lowering(builder, *args, **kwargs)`, with Values in place of tensors."""

VIEWS: set[str] = set()
"""ATen names whose result shares memory with the argument in eager; a subset of LOWERINGS."""


def lowering(*names: str, view: bool = False) -> Callable[[F], F]:
    """Registers a function for ATen names."""

    def register(function: F) -> F:
        for name in names:
            add(name, function, view=view)
        return function

    return register


def add(name: str, function: Lowering, *, view: bool = False) -> None:
    """Registers `function` for an ATen name; a name is registered once."""
    if name in LOWERINGS:
        raise ValueError(f"aten.{name} has two lowerings")
    LOWERINGS[name] = function
    if view:
        VIEWS.add(name)


def find(target: Any) -> Lowering | None:
    """Returns the lowering of the target of an FX node, or None."""
    return LOWERINGS.get(base_name(target)) if isinstance(target, OpOverload) else None


def is_view(target: Any) -> bool:
    """Returns whether `target` is lowered as a change of coordinates."""
    return isinstance(target, OpOverload) and base_name(target) in VIEWS


def base_name(target: OpOverload) -> str:
    """Returns `"add"` for aten.add.Tensor, and the name with its namespace for other operators: `"prims.iota"`."""
    name = str(target.overloadpacket.__name__)
    return name if target.namespace == "aten" else f"{target.namespace}.{name}"


def lowered_ops() -> frozenset[OpOverload]:
    """Returns all overloads with a lowering, which need no decomposition."""
    packets = (operator.attrgetter(name if "." in name else f"aten.{name}")(torch.ops) for name in LOWERINGS)
    return frozenset(getattr(packet, overload) for packet in packets for overload in packet.overloads())
