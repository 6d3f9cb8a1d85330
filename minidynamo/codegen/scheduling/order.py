"""Owns the order of pointwise loop nests among extern calls: each moves to the side where less memory is alive.

A nest whose result is no larger than the operands that die there runs as soon as its operands exist. A nest whose
result is larger than its dying operands runs directly before its first reader. As a result, more nests run between the
same extern calls, where fusion may join them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from minidynamo.codegen.ir.loops import LoopProgram, Loops, Node, names_in
from minidynamo.codegen.ir.size import hint
from minidynamo.codegen.scheduling.lifetimes import Lifetimes, defines, readers_of, reads


def reorder(program: LoopProgram) -> LoopProgram:
    """Returns the program with each pointwise loop nest moved early or late, if less memory is then alive."""
    return _late(_early(program))


class _Uses:
    """The uses of each value's memory, as positions in a program; uses through views count."""

    def __init__(self, program: LoopProgram) -> None:
        self.program = program
        self.lifetimes = Lifetimes(program)
        self.returned = {root for name in names_in(program.outputs) for root in self.lifetimes.roots(name)}
        self.positions: dict[str, list[int]] = {}
        self.definitions: dict[str, list[int]] = {}
        for k, node in enumerate(program.nodes):
            self.definitions.setdefault(defines(node), []).append(k)
            for root in self.roots(node):
                self.positions.setdefault(root, []).append(k)

    def roots(self, node: Node) -> list[str]:
        """Returns the owners of the memory that a node reads, each once."""
        return list(dict.fromkeys(root for name in reads(node) for root in self.lifetimes.roots(name)))

    def may_move(self, node: Node) -> bool:
        """Returns whether a node is a pointwise nest without checks, of values that are never overwritten."""
        if not isinstance(node, Loops) or node.combine is not None or node.body.checks:
            return False
        return defines(node) not in self.program.inputs and self.lifetimes.writes.keys().isdisjoint(self.roots(node))

    def shares(self, node: Node, segment: int) -> bool:
        """Returns whether another nest in a segment reads or computes an operand of a node."""
        users = [k for root in self.roots(node) for k in self.positions[root]]
        users += [k for name in reads(node) for k in self.definitions.get(name, ())]
        return any(self.lifetimes.segments[k] == segment and isinstance(self.program.nodes[k], Loops) for k in users)

    def dies(self, root: str) -> bool:
        """Returns whether the program allocates and frees the memory."""
        return root not in self.returned and root not in self.program.inputs and root in self.program.buffers

    def bytes(self, names: Iterable[str]) -> int:
        """Returns the size of values."""
        return sum(hint(self.program.buffers[name].nbytes) for name in names)


def _early(program: LoopProgram) -> LoopProgram:
    """Moves nests up to their last operands."""
    uses = _Uses(program)
    segments = uses.lifetimes.segments
    # A moved nest has the key of its last operand, extended by its own position.
    keys: list[tuple[int, ...]] = []
    positions: dict[str, int] = {}
    for k, node in enumerate(program.nodes):
        key: tuple[int, ...] = (k,)
        operands = [keys[positions[name]] for name in reads(node) if name in positions]
        if operands and uses.may_move(node):
            last = max(operands)
            segment = segments[last[0] + 1]  # after the operand
            if segments[k] > segment and uses.shares(node, segment) and _frees_enough(uses, node, k, (*last, k), keys):
                key = *last, k
        keys.append(key)
        positions[defines(node)] = k
    order = sorted(range(len(keys)), key=lambda k: keys[k])
    return dataclasses.replace(program, nodes=tuple(program.nodes[k] for k in order))


def _frees_enough(
    uses: _Uses, node: Node, position: int, key: tuple[int, ...], keys: Sequence[tuple[int, ...]]
) -> bool:
    """Returns whether the operands that die at a node, if it moves to `key`, are as large as its result."""

    def is_last(root: str) -> bool:
        others = [k for k in uses.positions[root] if k != position]
        return uses.dies(root) and all(k < position and keys[k] < key for k in others)

    return uses.bytes(filter(is_last, uses.roots(node))) >= uses.bytes([defines(node)])


def _late(program: LoopProgram) -> LoopProgram:
    """Moves nests down to their first readers, from the last nest to the first."""
    uses = _Uses(program)
    segments = uses.lifetimes.segments
    # Nests that move directly before the node at a position, in reverse order.
    moved: dict[int, list[int]] = {}
    moved_to = {k: k for k in range(len(program.nodes))}
    readers = readers_of(program)
    for k in range(len(program.nodes) - 1, -1, -1):
        node = program.nodes[k]
        if not uses.may_move(node) or not uses.dies(defines(node)):
            continue
        first = min((moved_to[r] for r in readers.get(defines(node), ())), default=k)
        if segments[first] > segments[k] and _keeps_no_more(uses, node, k, first, moved_to):
            moved.setdefault(first, []).append(k)
            moved_to[k] = first
    order = [
        n for k in range(len(program.nodes)) for n in (*reversed(moved.get(k, ())), *([k] if moved_to[k] == k else []))
    ]
    return dataclasses.replace(program, nodes=tuple(program.nodes[k] for k in order))


def _keeps_no_more(uses: _Uses, node: Node, position: int, first: int, moved_to: Mapping[int, int]) -> bool:
    """Returns whether the operands that live longer, if a node moves from `position` to `first`, are smaller than its
    result, or as large if a nest reads the result. Inputs never live longer."""
    extended = []
    for root in uses.roots(node):
        end = max((moved_to[k] for k in uses.positions[root] if k != position), default=-1)
        if end < first and root not in uses.returned and root not in uses.program.constants:
            extended.append(root)
    if not all(map(uses.dies, extended)):
        return False
    may_join = isinstance(uses.program.nodes[first], Loops)
    return uses.bytes(extended) < uses.bytes([defines(node)]) + may_join
