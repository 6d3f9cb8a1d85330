"""Owns the stage list of scheduling: from a loop program to kernels and extern calls in order.

Each stage is in a file of its own; this file names kernels.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection

from minidynamo.codegen.ir.loops import Extern, GetItem, Kernel, LoopProgram, Loops, Origins, merge, names_in
from minidynamo.codegen.ir.verify import verify_kernel, verify_program
from minidynamo.codegen.scheduling.fuse import Group, Item, fuse
from minidynamo.codegen.scheduling.inline import inline, remove_unused
from minidynamo.codegen.scheduling.kernels import build_kernel
from minidynamo.codegen.scheduling.lifetimes import reads
from minidynamo.codegen.scheduling.split import split_reductions

Step = Kernel | Extern | GetItem

LONGEST_NAME = 48
"""The longest name of a kernel without its number. Profilers cut long names; the number at the end identifies a kernel.
"""


def optimize(
    program: LoopProgram, *, join: bool, materialized: Collection[str] = (), recomputed: Collection[str] = ()
) -> LoopProgram:
    """Returns the loop program without dead nests, with pointwise values inlined and long reductions split."""
    program = remove_unused(program)
    if join:
        program = inline(program, materialized, recomputed)
    return split_reductions(program)


def schedule(
    program: LoopProgram,
    *,
    join: bool,
    verify: bool,
    materialized: Collection[str] = (),
    exclusive: Collection[frozenset[str]] = (),
    recomputed: Collection[str] = (),
) -> tuple[LoopProgram, list[Step]]:
    """Returns the optimized program, and its kernels and extern calls in the order in which they run.

    - `materialized`: values that are never computed in the kernel of a reader.
    - `exclusive`: sets of values; a kernel that computes values of a set computes no other values.
    - `recomputed`: values that each reader recomputes.
    """
    program = optimize(
        program, join=join, materialized=frozenset(materialized).union(*exclusive), recomputed=recomputed
    )
    if verify:
        verify_program(program)
    items = fuse(program, join=join, materialized=materialized, exclusive=exclusive)
    steps: list[Step] = []
    inputs = frozenset(program.inputs)
    returned = frozenset(names_in(program.outputs))
    readers = Counter(name for item in items for name in _reads(item))
    for k, item in enumerate(items):
        if isinstance(item, Group):
            defined = [n.out.name for n in item.nodes]
            own = _reads(item)
            # A value without readers is computed for its index checks.
            needed = [
                name for name in defined if name in returned or readers[name] > (name in own) or not readers[name]
            ]
            name = f"{kernel_name(merge(*(n.origins for n in item.nodes)))}_{k}"
            kernel = build_kernel(
                item,
                name,
                program.buffers,
                frozenset(needed),
                inputs.intersection(defined),
                reads_back=program.target == "cpp",
            )
            if verify:
                verify_kernel(kernel)
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
    more = len(names) - len(shown)
    return "_".join([*shown, *([f"and_{more}_more"] if more else [])]) or "kernel"
