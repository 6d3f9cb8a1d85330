"""Owns the splitting of reductions with too few results to keep all processors busy.

A split reduction computes partial results over chunks first, then a small reduction over the partial results.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator

import torch

from minidynamo.codegen.ir.expr import IndexValue, Load, Op, mask
from minidynamo.codegen.ir.index import Var, as_index, delinearize, row_major
from minidynamo.codegen.ir.loops import Buffer, LoopProgram, Loops, Node, chunks_wanted
from minidynamo.codegen.ir.size import Extent, ceil_division, hint, product
from minidynamo.codegen.lowering.formula import identity, operand

PARTIAL = "_partial"
"""The suffix of the names of partial results."""


def split_reductions(program: LoopProgram) -> LoopProgram:
    """Returns the program with each long reduction to few results in two steps."""
    nodes: list[Node] = []
    buffers = dict(program.buffers)
    for node in program.nodes:
        wanted = chunks_wanted(node, program.buffers, program.target) if isinstance(node, Loops) else 1
        if isinstance(node, Loops) and wanted > 1:
            first, second = _halves(node, f"{node.out.name}{PARTIAL}", wanted)
            buffers[first.out.name] = first.out
            nodes += [first, second]
        else:
            nodes.append(node)
    return dataclasses.replace(program, nodes=tuple(nodes), buffers=buffers)


def _chunks(extents: list[int], wanted: int) -> int:
    """Returns a number of chunks near `wanted`. A divisor of the outer extents keeps the indices simple."""
    outer = 1
    for extent in extents:
        outer *= extent
        fitting = [c for c in range(wanted // 2, wanted * 4 + 1) if c and outer % c == 0]
        if fitting:
            return min(fitting, key=lambda c: abs(c - wanted))
    return min(wanted, outer)


def _axes_to_cut(node: Loops, wanted: int) -> tuple[tuple[Var, ...], int]:
    """Returns the folded axes to cut, and the number of chunks.

    With known lengths, the outer axes are cut, as many as chunks of equal lengths need. Otherwise the longest axis is
    cut: dividing by a symbolic size costs more than it gains.
    """
    known = [v.extent for v in node.reduced if isinstance(v.extent, int)]
    if len(known) < len(node.reduced):
        return (max(node.reduced, key=lambda v: hint(v.extent)),), wanted
    chunks = _chunks(known, wanted)
    outer = itertools.accumulate(known, operator.mul)
    return node.reduced[: next((k for k, n in enumerate(outer, 1) if n % chunks == 0), len(known))], chunks


def _halves(node: Loops, name: str, wanted: int) -> tuple[Loops, Loops]:
    cut, chunks = _axes_to_cut(node, wanted)
    extents: list[Extent] = [v.extent for v in cut]
    total = product(extents)
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
    # In the order of the folded axes, so that a kernel can compute elements and fold them in one pass.
    first_cut = node.axes.index(cut[0])
    axes = tuple(v for v in (*node.axes[:first_cut], chunk, inner, *node.axes[first_cut:]) if v not in cut)
    folded = tuple(v for v in axes if v is inner or v in node.reduced)
    first = Loops(partial, axes, at, body, folded, node.combine, dtype, origins=node.origins)
    second = dataclasses.replace(node, axes=(*node.ranges, chunk), reduced=(chunk,), body=Load(name, at, dtype))
    return first, second
