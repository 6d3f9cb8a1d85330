"""Owns the rule that decides whether a read may move past an extern call.

A tensor must not live longer because a read of it was fused into a later kernel, and a read must not cross a write.
Extern calls keep their order and cut the program into numbered segments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from minidynamo.codegen.ir.expr import loads
from minidynamo.codegen.ir.loops import Extern, GetItem, LoopProgram, Loops, Node, names_in


def reads(node: Node) -> tuple[str, ...]:
    """Returns the names that a node reads, each once, in order."""
    found: Iterable[str]
    match node:
        case Loops():
            found = (load.buffer for load in loads(node.body))
        case GetItem():
            found = (node.source,)
        case Extern():
            found = names_in((node.args, tuple(value for _, value in node.kwargs)))
    return tuple(dict.fromkeys(found))


def defines(node: Node) -> str:
    """Returns the name that a node defines (or, for a store into an input, overwrites)."""
    return node.out.name if isinstance(node, Loops) else node.out


def stores(program: LoopProgram) -> dict[str, int]:
    """Returns the inputs that loop nests store into, with the position of each store in the program."""
    inputs = frozenset(program.inputs)
    return {
        node.out.name: k for k, node in enumerate(program.nodes) if isinstance(node, Loops) and defines(node) in inputs
    }


class Lifetimes:
    """Segments and last reads of a program in its original order."""

    def __init__(self, program: LoopProgram) -> None:
        self.last_read: dict[str, float] = {}
        self.writes: dict[str, list[int]] = {}
        # A view shares the storage of its source, so a read of the view is a read of the source.
        self._roots: dict[str, tuple[str, ...]] = {}
        self.segments: list[int] = []
        segment = 0
        for node in program.nodes:
            self.segments.append(segment)
            for name in reads(node):
                self._touch(name, segment)
            match node:
                case Loops() if node.out.name in program.inputs:
                    self.writes.setdefault(node.out.name, []).append(segment)
                case Extern() | GetItem():
                    if node.aliases:
                        owners = (root for name in node.aliases for root in self.roots(name))
                        self._roots[node.out] = tuple(dict.fromkeys(owners))
                    if isinstance(node, Extern):
                        for root in {root for name in node.mutates for root in self.roots(name)}:
                            self.writes.setdefault(root, []).append(segment)
                        segment += not node.is_view
        for name in names_in(program.outputs):
            self._touch(name, math.inf)
        self.last = segment

    def roots(self, name: str) -> tuple[str, ...]:
        """Returns the values that own, or may own, the storage of `name`."""
        return self._roots.get(name, (name,))

    def _touch(self, name: str, segment: float) -> None:
        for root in self.roots(name):
            self.last_read[root] = max(segment, self.last_read.get(root, 0))

    def may_read_later(self, name: str, segment: int, later: int) -> bool:
        """Returns whether a read of `name` may move from `segment` to `later`."""
        if later <= segment:
            return True
        roots = self.roots(name)
        crossed = any(segment <= write < later for root in roots for write in self.writes.get(root, ()))
        return not crossed and all(self.last_read.get(root, 0) >= later for root in roots)
