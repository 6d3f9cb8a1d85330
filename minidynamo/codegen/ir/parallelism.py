"""Owns the number of programs that keep a target's processors busy, and the work of each program.

The folds to cut are chosen here; `scheduling/split.py` cuts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minidynamo.codegen.ir.expr import loads
from minidynamo.codegen.ir.index import Var, flatten
from minidynamo.codegen.ir.loops import MOMENTS, POSITIONAL, Buffer, Loops
from minidynamo.codegen.ir.size import hint, product


@dataclass(frozen=True)
class Parallelism:
    """The parallelism of a target's processors.

    A fold is cut if at most `few` programs have at least `large` elements to read.
    """

    #: The most programs for which a fold is cut.
    few: int
    #: The fewest elements for which a fold is cut.
    large: int
    #: The number of chunks to cut a fold into, roughly; 0: use `programs`.
    chunks: int = 0
    #: The number of programs to aim for, all chunks together.
    programs: int = 0
    #: The fewest elements per program.
    shortest: int = 1
    #: The results per program, if the results are adjacent in memory and the fold runs across them.
    neighbours: int = 1


PARALLELISM = {
    # A few threads; each runs its programs in sequence.
    "cpp": Parallelism(few=63, large=1 << 16, chunks=64),
    # About a hundred processors; each needs several concurrent programs to read at full bandwidth.
    "triton": Parallelism(few=255, large=1 << 18, programs=1024, shortest=2048, neighbours=64),
}

LONG = 256
"""The shortest fold that is worth a second kernel."""


def chunks_wanted(node: Loops, buffers: Mapping[str, Buffer], target: str) -> int:
    """Returns the number of chunks to cut a fold into, roughly; 1 leaves the fold whole."""
    if node.combine is None or node.combine in (*POSITIONAL, *MOMENTS) or target not in PARALLELISM:
        return 1
    machine = PARALLELISM[target]
    results = hint(product(v.extent for v in node.ranges))
    length = hint(product(v.extent for v in node.reduced))
    each = 1 if _innermost(node, buffers) in node.reduced else machine.neighbours
    programs = -(-results // each)
    if not 0 < programs <= machine.few or length < LONG or results * length < machine.large:
        return 1
    return machine.chunks or min(machine.programs // programs, length * min(each, results) // machine.shortest)


def _innermost(node: Loops, buffers: Mapping[str, Buffer]) -> Var:
    """Returns the axis with the smallest stride in the widest load of a fold."""
    offsets = [flatten(load.index, buffers[load.buffer].stride) for load in loads(node.body)]
    widest = max(offsets, key=lambda offset: len(offset.variables()), default=None)
    steps = {} if widest is None else {v: abs(hint(widest.coefficient(v))) for v in node.axes}
    reached = [v for v in node.axes if steps.get(v)]
    return min(reversed(reached), key=lambda v: steps[v], default=node.axes[-1])
