"""Owns the stage list of scheduling: from a loop program to kernels and extern calls in order.

Each step is in a file of its own; this one names kernels and passes results on.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection

from minidynamo.codegen.ir.loops import Extern, GetItem, Kernel, LoopProgram, Loops, Origins, merge, names_in
from minidynamo.codegen.ir.verify import verify_kernel, verify_program
from minidynamo.codegen.scheduling.dead import remove_unused
from minidynamo.codegen.scheduling.fuse import Group, Item, fuse
from minidynamo.codegen.scheduling.inline import inline
from minidynamo.codegen.scheduling.kernels import build_kernel
from minidynamo.codegen.scheduling.lifetimes import reads
from minidynamo.codegen.scheduling.split import split_reductions

Step = Kernel | Extern | GetItem

LONGEST_NAME = 48
"""Names of kernels show in profiles, which cut them; what identifies a kernel is the number at the end."""


def optimize(
    program: LoopProgram, *, join: bool, apart: Collection[str] = (), again: Collection[str] = ()
) -> LoopProgram:
    """The loop program with dead nests removed, pointwise values inlined and long reductions split."""
    program = remove_unused(program)
    if join:
        program = inline(program, apart, again)
    return split_reductions(program)


def schedule(
    program: LoopProgram,
    *,
    join: bool,
    verify: bool,
    apart: Collection[str] = (),
    alone: Collection[frozenset[str]] = (),
    again: Collection[str] = (),
) -> tuple[LoopProgram, list[Step]]:
    """The optimized program, and its kernels and extern calls in the order in which they run. Kernels that read what is
    `apart` do not make it; those that make what is `alone` make nothing else; all that read what is made `again` make
    it."""
    program = optimize(program, join=join, apart=frozenset(apart).union(*alone), again=again)
    if verify:
        verify_program(program)
    items = fuse(program, join=join, apart=apart, alone=alone)
    steps: list[Step] = []
    inputs = frozenset(program.inputs)
    returned = frozenset(names_in(program.outputs))
    readers = Counter(name for item in items for name in _reads(item))
    for k, item in enumerate(items):
        if isinstance(item, Group):
            made = [n.out.name for n in item.nodes]
            own = _reads(item)
            # What nobody reads is there for its checks.
            needed = [name for name in made if name in returned or readers[name] > (name in own) or not readers[name]]
            name = f"{kernel_name(merge(*(n.origins for n in item.nodes)))}_{k}"
            kernel = build_kernel(
                item,
                name,
                program.buffers,
                frozenset(needed),
                inputs.intersection(made),
                reads_back=program.target == "cpp",
            )
            if verify:
                verify_kernel(kernel)
            steps.append(kernel)
        elif not isinstance(item, Loops):
            steps.append(item)
    return program, steps


def _reads(item: Item) -> frozenset[str]:
    """Every name that is read by a kernel or an extern call."""
    nodes = item.nodes if isinstance(item, Group) else (item,)
    return frozenset(name for n in nodes for name in reads(n))


def kernel_name(origins: Origins) -> str:
    """The operations that a kernel computes, in graph order; those that do not fit are counted."""
    names = list(dict.fromkeys(re.sub(r"\W+", "_", origin.op) for origin in origins))
    shown = list(itertools.takewhile(lambda n: len("_".join(names[: names.index(n) + 1])) <= LONGEST_NAME, names))
    more = len(names) - len(shown)
    return "_".join([*shown, *([f"and_{more}_more"] if more else [])]) or "kernel"
