"""Owns the splitting of reductions that have too few results to keep a machine busy.

Such a reduction becomes two: partial results over chunks, then a small one over the partial results.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from minidynamo.codegen.ir.expr import IndexValue, Load, Op, mask
from minidynamo.codegen.ir.index import Var, as_index, delinearize
from minidynamo.codegen.ir.loops import Buffer, LoopProgram, Loops, Node
from minidynamo.codegen.lowering.formula import identity, literal

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
    if node.combine is None or node.position is not None:
        return False
    results = math.prod(v.extent for v in node.ranges)
    length = math.prod(v.extent for v in node.reduced)
    return 0 < results < FEW_RESULTS and length >= LONG and results * length >= LARGE


def _chunks(extents: list[int]) -> int:
    """A number of chunks near CHUNKS; one that divides the outer extents keeps the indices simple."""
    total = math.prod(extents)
    outer = 1
    for extent in extents:
        outer *= extent
        fitting = [c for c in range(CHUNKS // 2, CHUNKS * 4 + 1) if outer % c == 0]
        if fitting:
            return min(fitting, key=lambda c: abs(c - CHUNKS))
    return min(CHUNKS, total)


def _halves(node: Loops, name: str) -> tuple[Loops, Loops]:
    extents = [v.extent for v in node.reduced]
    total = math.prod(extents)
    chunks = _chunks(extents)
    length = -(-total // chunks)
    chunk, inner = Var("chunk", chunks), Var("inner", length)
    flat = as_index(chunk) * length + as_index(inner)
    body = node.body.substitute(dict(zip(node.reduced, delinearize(flat, extents))))
    dtype = node.accumulate
    assert dtype is not None and node.combine is not None
    if chunks * length != total:
        inside = Op("lt", (IndexValue(flat, torch.int64), literal(total, torch.int64)), torch.bool)
        body = Op("where", (inside, mask(body, inside), identity(node.combine, dtype)), dtype)
    shape = tuple(v.extent for v in node.ranges)
    strides = tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))
    partial = Buffer(name, (chunks, *shape), (math.prod(shape), *strides), dtype, node.out.device)
    at = (as_index(chunk), *(as_index(v) for v in node.ranges))
    first = Loops(partial, (chunk, *node.ranges, inner), at, body, (inner,), node.combine, dtype, origins=node.origins)
    second = dataclasses.replace(node, axes=(*node.ranges, chunk), reduced=(chunk,), body=Load(name, at, dtype))
    return first, second
