"""Owns the splitting of reductions that have too few results to keep a machine busy.

Such a reduction becomes two: partial results over chunks, then a small one over the partial results.
"""

from __future__ import annotations

import dataclasses

import torch

from minidynamo.codegen.ir.expr import IndexValue, Load, Op, mask
from minidynamo.codegen.ir.index import Var, as_index, delinearize, row_major
from minidynamo.codegen.ir.loops import MOMENTS, POSITIONAL, Buffer, LoopProgram, Loops, Node
from minidynamo.codegen.ir.size import Extent, ceil_division, hint, product
from minidynamo.codegen.lowering.formula import identity, operand

FEW_RESULTS = 64
"""With at least this many results there is enough to do side by side."""

LARGE = 65536
"""Fewer elements than this are not worth a second kernel."""

LONG = 256
"""Neither are shorter folds."""

CHUNKS = 64
"""How many partial results are aimed at."""


def split_reductions(program: LoopProgram) -> LoopProgram:
    """The same program with long reductions to few results in two steps."""
    nodes: list[Node] = []
    buffers = dict(program.buffers)
    for node in program.nodes:
        if isinstance(node, Loops) and _is_long(node):
            first, second = _halves(node, f"{node.out.name}_partial")
            buffers[first.out.name] = first.out
            nodes += [first, second]
        else:
            nodes.append(node)
    return dataclasses.replace(program, nodes=tuple(nodes), buffers=buffers)


def _is_long(node: Loops) -> bool:
    if node.combine is None or node.combine in (*POSITIONAL, *MOMENTS):
        return False
    results = hint(product(v.extent for v in node.ranges))
    length = hint(product(v.extent for v in node.reduced))
    return 0 < results < FEW_RESULTS and length >= LONG and results * length >= LARGE


def _chunks(extents: list[int]) -> int:
    """A number of chunks near CHUNKS; one that divides the outer extents keeps the indices simple."""
    outer = 1
    for extent in extents:
        outer *= extent
        fitting = [c for c in range(CHUNKS // 2, CHUNKS * 4 + 1) if outer % c == 0]
        if fitting:
            return min(fitting, key=lambda c: abs(c - CHUNKS))
    return min(CHUNKS, outer)


def _cut(node: Loops) -> tuple[Var, ...]:
    """The folded axes that are cut into chunks: all together, or the longest if their lengths are not known, since
    dividing by a size costs more than it gains."""
    if all(isinstance(v.extent, int) for v in node.reduced):
        return node.reduced
    return (max(node.reduced, key=lambda v: hint(v.extent)),)


def _halves(node: Loops, name: str) -> tuple[Loops, Loops]:
    cut = _cut(node)
    extents: list[Extent] = [v.extent for v in cut]
    total = product(extents)
    known = [extent for extent in extents if isinstance(extent, int)]
    chunks = _chunks(known) if len(known) == len(extents) else CHUNKS
    length = ceil_division(total, chunks)
    chunk, inner = Var("chunk", chunks), Var("inner", length)
    flat = as_index(chunk) * length + as_index(inner)
    body = node.body.substitute(dict(zip(cut, delinearize(flat, extents))))
    dtype = node.accumulate
    assert dtype is not None and node.combine is not None
    if length * chunks != total:
        inside = Op("lt", (IndexValue(flat, torch.int64), operand(total, torch.int64)), torch.bool)
        body = Op("where", (inside, mask(body, inside), identity(node.combine, dtype)), dtype)
    shape = tuple(v.extent for v in node.ranges)
    partial = Buffer(name, (chunks, *shape), row_major((chunks, *shape)), dtype, node.out.device)
    at = (as_index(chunk), *(as_index(v) for v in node.ranges))
    folded = (inner, *(v for v in node.reduced if v not in cut))
    first = Loops(partial, (chunk, *node.ranges, *folded), at, body, folded, node.combine, dtype, origins=node.origins)
    second = dataclasses.replace(node, axes=(*node.ranges, chunk), reduced=(chunk,), body=Load(name, at, dtype))
    return first, second
