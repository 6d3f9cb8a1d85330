"""Owns the replacement of short folds over the memory of operators by pointwise formulas.

For example, the gradient of a key head that several query heads share is such a sum. A formula can be fused into its
readers, whatever their order of dimensions.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator

from minidynamo.codegen.ir.expr import Expr, Op
from minidynamo.codegen.ir.index import as_index
from minidynamo.codegen.ir.loops import LoopProgram, Loops
from minidynamo.codegen.ir.size import hint, product
from minidynamo.codegen.lowering.formula import V, identity
from minidynamo.codegen.lowering.registry import dimensions
from minidynamo.codegen.scheduling.lifetimes import reads

MOST_UNROLLED = 8
"""The most elements of an unrolled sum."""


def unroll(program: LoopProgram) -> LoopProgram:
    """Returns the program with formulas for short sums that a nest reads, on a GPU. A sum stays a fold if it may share
    a kernel with the nests that compute its elements, or if a reader has more elements than the sum."""
    if program.target != "triton":
        return program
    computed = {node.out.name for node in program.nodes if isinstance(node, Loops)}
    largest: dict[str, int] = {}
    for node in program.nodes:
        if isinstance(node, Loops):
            points = hint(product(v.extent for v in node.axes))
            largest.update((name, max(points, largest.get(name, 0))) for name in reads(node))
    nodes = [
        _formula(node)
        if isinstance(node, Loops)
        and _is_short(node)
        and computed.isdisjoint(reads(node))
        and 0 < largest.get(node.out.name, 0) <= hint(node.out.numel)
        else node
        for node in program.nodes
    ]
    return dataclasses.replace(program, nodes=tuple(nodes))


def _is_short(node: Loops) -> bool:
    length = product(v.extent for v in node.reduced)
    if node.combine != "sum" or not isinstance(length, int) or length > MOST_UNROLLED:
        return False
    return all(v.extent == 1 or as_index(v) in node.index for v in node.ranges)


def _elements(node: Loops) -> Iterator[Expr]:
    """Yields the elements that a fold joins, in order."""
    for index in itertools.product(*(range(hint(v.extent)) for v in node.reduced)):
        yield node.body.substitute(dict(zip(node.reduced, map(as_index, index))))


def _formula(node: Loops) -> Loops:
    """Returns the pointwise nest of a fold, with an axis per dimension of the result."""
    dtype = node.accumulate
    assert dtype is not None
    # The zero comes last: no sum is a negative zero, and a formula of two elements stays cheap enough to inline.
    total = functools.reduce(lambda a, b: Op("add", (a, b), dtype), (*_elements(node), identity("sum", dtype)))
    axes = dimensions(node.out.shape, "i")
    at = tuple(map(as_index, axes))
    values = {v: new for v in node.ranges for old, new in zip(node.index, at) if old == as_index(v)}
    body = V(total.substitute(values)).to(node.out.dtype).expr
    return Loops(node.out, axes, at, body, origins=node.origins)
