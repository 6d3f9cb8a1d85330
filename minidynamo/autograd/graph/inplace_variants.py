"""Owns the way back from an operator that returns new values to the one that writes them to its arguments.

It reads schemas; whether a graph may call the latter is decided in `autograd/reinplace/reuse.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.graph.mutation import Mutation, is_torchs, mutation_of
from minidynamo.compat import OpOverload


@dataclass(frozen=True)
class Twin:
    """`op` writes to `written` (positions among its arguments) what the functional operator returns behind its first
    `own` results. `names` are its arguments."""

    op: OpOverload
    written: tuple[int, ...]
    own: int
    names: tuple[str, ...]

    def call(self, functional: OpOverload, node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The arguments of `op` for what `node` gives the functional operator; None where it takes less."""
        theirs = [arg.name for arg in compat.schema_of(functional).arguments]
        if len(node.args) > len(self.names) or any(theirs.index(name) >= len(self.names) for name in node.kwargs):
            return None
        return node.args, {self.names[theirs.index(name)]: value for name, value in node.kwargs.items()}


@functools.cache
def inplace_variant_of(functional: OpOverload) -> Twin | None:
    """The twin of an operator of torch, or of one that takes numbers in its place, if there is one."""
    if not is_torchs(functional):
        return None
    for op in _overloads(getattr(torch.ops, functional.namespace), functional.overloadpacket.__name__):
        mutation = mutation_of(op)
        if mutation is not None and mutation.functional is functional and not mutation.dropped:
            names = tuple(arg.name for arg in compat.schema_of(op).arguments)
            if _is_plain(mutation):
                written = tuple(names.index(name) for name in mutation.arguments)
                return Twin(op, written, mutation.own_results, names)
    return None


def in_place(node: fx.Node) -> OpOverload | None:
    """The operator that takes what `node` is called with, and writes its one result over its first argument."""
    twin = inplace_variant_of(node.target) if isinstance(node.target, OpOverload) else None
    if twin is None or twin.own or twin.written != (0,) or not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    return twin.op if twin.call(node.target, node) == (node.args, node.kwargs) else None  # type: ignore[arg-type]


def _overloads(library: Any, name: str) -> Iterator[OpOverload]:
    stem = name.removesuffix("_functional")
    for candidate in {f"{name}_": 0, f"{stem}_": 0} | ({} if stem == name else {stem: 0}):
        packet = getattr(library, candidate, None)
        for overload in packet.overloads() if packet is not None else ():
            yield getattr(packet, overload)


def _is_plain(mutation: Mutation) -> bool:
    """Whether what is returned is either what was written, or results of its own."""
    return mutation.returns in ((), mutation.arguments) or not any(mutation.returns)


@functools.cache
def out_variant(functional: OpOverload) -> OpOverload | None:
    """The overload of an operator with one result that writes it to `out`."""
    packet = functional.overloadpacket
    for name in packet.overloads():
        found: OpOverload = getattr(packet, name)
        mutation = mutation_of(found)
        if mutation is not None and mutation.functional is functional and mutation.dropped == ("out",):
            return found
    return None
