"""Owns what keeps the machines busy that kernels are made for: how many programs, each with how much to do.

Which folds are cut for that is said here; `scheduling/split.py` cuts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minidynamo.codegen.ir.expr import loads
from minidynamo.codegen.ir.index import Var, flatten
from minidynamo.codegen.ir.loops import MOMENTS, POSITIONAL, Buffer, Loops
from minidynamo.codegen.ir.size import hint, product


@dataclass(frozen=True)
class Machine:
    """What keeps the machine busy that a target makes kernels for.

    A fold is cut where up to `few` programs have at least `large` elements to read: into about `chunks`, or so that
    there are about `programs` in all, each with `shortest` elements or more. One program makes `neighbours` results
    where these are neighbours in memory and the fold runs across it.
    """

    few: int
    large: int
    chunks: int = 0
    programs: int = 0
    shortest: int = 1
    neighbours: int = 1


MACHINES = {
    # A handful of threads, each with one program after the other.
    "cpp": Machine(few=63, large=1 << 16, chunks=64),
    # A hundred processors, each of which needs several programs side by side to read as fast as memory allows.
    "triton": Machine(few=255, large=1 << 18, programs=1024, shortest=2048, neighbours=64),
}

LONG = 256
"""Shorter folds are not worth a second kernel."""


def chunks_wanted(node: Loops, buffers: Mapping[str, Buffer], target: str) -> int:
    """About how many chunks a fold should be cut into; 1 leaves it whole."""
    if node.combine is None or node.combine in (*POSITIONAL, *MOMENTS) or target not in MACHINES:
        return 1
    machine = MACHINES[target]
    results = hint(product(v.extent for v in node.ranges))
    length = hint(product(v.extent for v in node.reduced))
    each = 1 if _innermost(node, buffers) in node.reduced else machine.neighbours
    programs = -(-results // each)
    if not 0 < programs <= machine.few or length < LONG or results * length < machine.large:
        return 1
    return machine.chunks or min(machine.programs // programs, length * min(each, results) // machine.shortest)


def _innermost(node: Loops, buffers: Mapping[str, Buffer]) -> Var:
    """The axis along which what is folded lies in memory: that of the smallest steps in what most axes reach into."""
    offsets = [flatten(load.index, buffers[load.buffer].stride) for load in loads(node.body)]
    widest = max(offsets, key=lambda offset: len(offset.variables()), default=None)
    steps = {} if widest is None else {v: abs(hint(widest.coefficient(v))) for v in node.axes}
    reached = [v for v in node.axes if steps.get(v)]
    return min(reversed(reached), key=lambda v: steps[v], default=node.axes[-1])
