"""Owns the stage list of scheduling, from a loop program to kernels and extern calls in order, and the split of
reductions with too few results to keep all processors busy.

Each stage except the split has its own file; kernels get their names here. A split reduction computes partial results
over chunks first, then a small reduction over the partial results.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
import re
from collections import Counter
from collections.abc import Collection

import torch

from minidynamo.codegen.ir.expr import IndexValue, Load, Op, mask
from minidynamo.codegen.ir.index import Var, as_index, delinearize, row_major
from minidynamo.codegen.ir.loops import (
    Buffer,
    Extern,
    GetItem,
    Kernel,
    LoopProgram,
    Loops,
    Node,
    Origins,
    chunks_wanted,
    merge,
    names_in,
)
from minidynamo.codegen.ir.size import Extent, ceil_division, hint, product
from minidynamo.codegen.ir.verify import verify_program
from minidynamo.codegen.lowering.formula import identity, operand
from minidynamo.codegen.scheduling.fuse import Group, Item, fuse
from minidynamo.codegen.scheduling.inline import inline, remove_unused
from minidynamo.codegen.scheduling.kernel_reuse import Kernels
from minidynamo.codegen.scheduling.lifetimes import reads
from minidynamo.codegen.scheduling.order import reorder
from minidynamo.codegen.scheduling.unroll import unroll

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


Step = Kernel | Extern | GetItem

LONGEST_NAME = 48
"""The longest name of a kernel without its number. Profilers cut long names; the number at the end identifies a kernel.
"""


def optimize(
    program: LoopProgram, *, join: bool, materialized: Collection[str] = (), recomputed: Collection[str] = ()
) -> LoopProgram:
    """Returns the loop program without dead nests, with pointwise nests moved and inlined and long reductions split."""
    program = remove_unused(program)
    if join:
        program = inline(reorder(program), materialized, recomputed)
        # Inlined nests have other operands, and unrolled sums can be inlined too.
        program = inline(reorder(unroll(program)), materialized, recomputed)
    return split_reductions(program)


def schedule(
    program: LoopProgram,
    *,
    join: bool,
    verify: bool,
    materialized: Collection[str] = (),
    exclusive: Collection[frozenset[str]] = (),
    recomputed: Collection[str] = (),
    kernels: Kernels | None = None,
) -> tuple[LoopProgram, list[Step]]:
    """Returns the optimized program, and its kernels and extern calls in the order in which they run.

    - `materialized`: values that are never computed in the kernel of a reader.
    - `exclusive`: sets of values; a kernel that computes values of a set computes no other values.
    - `recomputed`: values that each reader recomputes.
    - `kernels`: the builder of the program's kernels, with the kernels of earlier schedules.
    """
    program = optimize(
        program, join=join, materialized=frozenset(materialized).union(*exclusive), recomputed=recomputed
    )
    if verify:
        verify_program(program)
    kernels = Kernels(verify=verify) if kernels is None else kernels
    items = fuse(program, join=join, materialized=materialized, exclusive=exclusive)
    steps: list[Step] = []
    inputs = frozenset(program.inputs)
    returned = frozenset(names_in(program.outputs))
    readers = Counter(name for item in items for name in _reads(item))
    for k, item in enumerate(items):
        if isinstance(item, Group):
            defined = [n.out.name for n in item.nodes]
            own_reads = _reads(item)
            # A value without readers is computed for its index checks.
            needed = [
                name for name in defined if name in returned or readers[name] > (name in own_reads) or not readers[name]
            ]
            name = f"{kernel_name(merge(*(n.origins for n in item.nodes)))}_{k}"
            kernel = kernels.build(
                item,
                name,
                program.buffers,
                frozenset(needed),
                inputs.intersection(defined),
                reads_back=program.target == "cpp",
            )
            steps.append(kernel)
        elif not isinstance(item, Loops):
            steps.append(item)
    return program, steps


def _reads(item: Item) -> frozenset[str]:
    """Returns the names that a kernel or an extern call reads."""
    nodes = item.nodes if isinstance(item, Group) else (item,)
    return frozenset(name for n in nodes for name in reads(n))


def kernel_name(origins: Origins) -> str:
    """Returns a name made of the kernel's operations in graph order; operations that do not fit are counted."""
    names = list(dict.fromkeys(re.sub(r"\W+", "_", origin.op) for origin in origins))
    shown = list(itertools.takewhile(lambda n: len("_".join(names[: names.index(n) + 1])) <= LONGEST_NAME, names))
    hidden = len(names) - len(shown)
    return "_".join([*shown, *([f"and_{hidden}_more"] if hidden else [])]) or "kernel"
