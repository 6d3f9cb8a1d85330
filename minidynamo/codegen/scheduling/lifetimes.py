"""Owns lifetimes of values: last uses, storage that views share, and whether a read may move past an extern call.

A value dies after its last reader, a storage dies when all its values are dead. A tensor must not live longer because a
read of it was fused into a later kernel, and a read must not cross a write. Extern calls keep their order and cut the
program into numbered segments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from minidynamo.codegen.ir.loops import Extern, GetItem, Kernel, LoopProgram, Loops, Node, names_in
from minidynamo.core.records import record

Call = Kernel | Extern | GetItem
"""A step of a schedule before its memory is planned."""


def reads(node: Node | Kernel) -> tuple[str, ...]:
    """Returns the names that a node reads, each once, in order."""
    names: Iterable[str]
    match node:
        case Kernel():
            names = (buffer.name for buffer in node.reads)
        case Loops():
            names = (load.buffer for load in node.body.loads)
        case GetItem():
            names = (node.source,)
        case Extern():
            names = names_in((node.args, tuple(value for _, value in node.kwargs)))
    return tuple(dict.fromkeys(names))


def defines(node: Node) -> str:
    """Returns the name that a node defines (or, for a store into an input, overwrites)."""
    return node.out.name if isinstance(node, Loops) else node.out


def defined(node: Node | Kernel) -> tuple[str, ...]:
    """Returns the names that a node or a kernel writes or binds."""
    return tuple(buffer.name for buffer in node.writes) if isinstance(node, Kernel) else (defines(node),)


def readers_of(program: LoopProgram) -> dict[str, list[int]]:
    """Returns, per value that is read, the positions of its readers in the program."""
    readers: dict[str, list[int]] = {}
    for k, node in enumerate(program.nodes):
        for name in reads(node):
            readers.setdefault(name, []).append(k)
    return readers


def stores(program: LoopProgram) -> dict[str, int]:
    """Returns the inputs that loop nests store into, with the position of each store in the program."""
    inputs = frozenset(program.inputs)
    return {
        node.out.name: k for k, node in enumerate(program.nodes) if isinstance(node, Loops) and defines(node) in inputs
    }


@record(frozen=True)
class Liveness:
    """Lifetimes as positions in a sequence of nodes. -1 is before the sequence, infinity is after it."""

    #: Name -> position of its last use.
    last_use: dict[str, float]
    #: Owner of a storage -> position of the last use of any value in the storage.
    storage_end: dict[str, float]
    #: View -> values whose storage the view may share: one value for a view operator of torch, every argument for an
    #: unknown function.
    roots: dict[str, tuple[str, ...]]
    #: Output -> position of its definition or its last reader.
    final: dict[str, float]

    def owners(self, name: str) -> tuple[str, ...]:
        """Returns the values that own, or may own, the storage of `name`; `name` itself if it is not a view."""
        return self.roots.get(name, (name,))

    def dying(self, position: int) -> list[str]:
        """Returns the names whose last use is at `position`, in order of first appearance."""
        return self._dying.get(position, [])

    @cached_property
    def _dying(self) -> dict[float, list[str]]:
        dying: dict[float, list[str]] = {}
        for name, last in self.last_use.items():
            dying.setdefault(last, []).append(name)
        return dying


def analyze(
    nodes: Sequence[Node | Kernel], inputs: Iterable[str], outputs: Any, placements: Mapping[str, str] | None = None
) -> Liveness:
    """Computes the last uses of all names. An input without a reader ends before the first node. `placements[value]`
    must exist when `value` is defined."""
    placements = placements or {}
    last: dict[str, float] = dict.fromkeys(inputs, -1)
    roots: dict[str, tuple[str, ...]] = {}
    for k, node in enumerate(nodes):
        for name in reads(node):
            last[name] = k
        for name in defined(node):
            last[name] = k
            if name in placements:
                last[placements[name]] = k
        if isinstance(node, (Extern, GetItem)) and node.aliases:
            owners = (owner for name in node.aliases for owner in roots.get(name, (name,)))
            roots[node.out] = tuple(dict.fromkeys(owners))
    final = {name: last[name] for name in names_in(outputs) if name in last}
    for name in names_in(outputs):
        last[name] = math.inf
    ends: dict[str, float] = {}
    for name, position in last.items():
        for owner in roots.get(name, (name,)):
            ends[owner] = max(position, ends.get(owner, -1))
    return Liveness(last, ends, roots, final)


class Lifetimes:
    """Segments and writes of a program in its original order, with the lifetimes of its values."""

    def __init__(self, program: LoopProgram) -> None:
        self.live = analyze(program.nodes, program.inputs, program.outputs)
        self.writes: dict[str, list[int]] = {}
        #: The segment of each node, then the segment after the last node.
        self.segments: list[int] = []
        segment = 0
        for node in program.nodes:
            self.segments.append(segment)
            if isinstance(node, Loops) and node.out.name in program.inputs:
                self.writes.setdefault(node.out.name, []).append(segment)
            elif isinstance(node, Extern):
                for root in {root for name in node.mutates for root in self.roots(name)}:
                    self.writes.setdefault(root, []).append(segment)
                segment += not node.is_view
        self.segments.append(segment)

    def roots(self, name: str) -> tuple[str, ...]:
        """Returns the values that own, or may own, the storage of `name`."""
        return self.live.owners(name)

    def may_read_later(self, name: str, segment: int, later: int) -> bool:
        """Returns whether a read of `name` may move from `segment` to `later`."""
        if later <= segment:
            return True
        roots = self.roots(name)
        crossed = any(segment <= write < later for root in roots for write in self.writes.get(root, ()))
        return not crossed and all(self._last_segment(root) >= later for root in roots)

    def _last_segment(self, root: str) -> float:
        """Returns the segment of the last use of a storage."""
        end = self.live.storage_end[root]
        return self.segments[int(end)] if 0 <= end < math.inf else end
