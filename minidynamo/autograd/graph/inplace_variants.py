"""Owns the mapping from functional operators to their in-place variants and `out=` overloads.

It reads schemas; `autograd/reinplace/reuse.py` decides whether a graph may call a variant.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.graph.mutation import Mutation, is_torch_operator, mutation_of
from minidynamo.compat import OpOverload


@dataclass(frozen=True)
class InplaceVariant:
    """An operator that computes the same as a functional operator, but writes it to arguments."""

    #: The operator that writes.
    op: OpOverload
    #: Positions of the written arguments, in the order of the functional results.
    written: tuple[int, ...]
    #: Number of functional results before the written ones; `op` returns only these.
    own: int
    #: Names of its arguments.
    names: tuple[str, ...]

    def call(self, functional: OpOverload, node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Returns the arguments of `op` for the call `node` of the functional operator; None if `op` takes fewer."""
        theirs = [arg.name for arg in compat.schema_of(functional).arguments]
        if len(node.args) > len(self.names) or any(theirs.index(name) >= len(self.names) for name in node.kwargs):
            return None
        return node.args, {self.names[theirs.index(name)]: value for name, value in node.kwargs.items()}


@functools.cache
def inplace_variant_of(functional: OpOverload) -> InplaceVariant | None:
    """Returns the in-place variant of an operator of torch, or of a replacing number operator; None without variant."""
    if not is_torch_operator(functional):
        return None
    for op in _overloads(getattr(torch.ops, functional.namespace), functional.overloadpacket.__name__):
        mutation = mutation_of(op)
        if mutation is not None and mutation.functional is functional and not mutation.dropped:
            names = tuple(arg.name for arg in compat.schema_of(op).arguments)
            if _returns_writes_or_own(mutation):
                written = tuple(names.index(name) for name in mutation.arguments)
                return InplaceVariant(op, written, mutation.own_results, names)
    return None


def in_place(node: fx.Node) -> OpOverload | None:
    """Returns the operator that takes the same arguments as `node`, and writes the single result over the first."""
    variant = inplace_variant_of(node.target) if isinstance(node.target, OpOverload) else None
    if variant is None or variant.own or variant.written != (0,) or not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    return variant.op if variant.call(node.target, node) == (node.args, node.kwargs) else None  # type: ignore[arg-type]


def _overloads(library: Any, name: str) -> Iterator[OpOverload]:
    stem = name.removesuffix("_functional")
    for candidate in {f"{name}_": 0, f"{stem}_": 0} | ({} if stem == name else {stem: 0}):
        packet = getattr(library, candidate, None)
        for overload in packet.overloads() if packet is not None else ():
            yield getattr(packet, overload)


def _returns_writes_or_own(mutation: Mutation) -> bool:
    """Returns whether an operator returns either all written arguments, or only results of its own."""
    return mutation.returns in ((), mutation.arguments) or not any(mutation.returns)


@functools.cache
def out_variant(functional: OpOverload) -> OpOverload | None:
    """Returns the overload of an operator with a single result, written to `out`."""
    packet = functional.overloadpacket
    for name in packet.overloads():
        found: OpOverload = getattr(packet, name)
        mutation = mutation_of(found)
        if mutation is not None and mutation.functional is functional and mutation.dropped == ("out",):
            return found
    return None
