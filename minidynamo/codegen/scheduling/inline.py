"""Owns the first step of fusion, computing cheap or singly used pointwise values inside their readers, and the removal
of loop nests and views without readers.

A value that is inlined into all its readers has no buffer any more. No expensive value is computed twice, no read moves
to a place where it would keep memory alive, and no check of an index gets lost. These nodes stay even without readers:

- other extern calls, because of possible side effects;
- loop nests with checks of indices, because of the error;
- `as_strided` views, because torch raises if the memory is too small.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence

import torch

from minidynamo.codegen.ir.expr import EXPENSIVE, Expr, Load, mask, rewrite
from minidynamo.codegen.ir.index import as_index, flatten, row_major
from minidynamo.codegen.ir.loops import Buffer, Extern, LoopProgram, Loops, Node, checks_kept, merge, names_in
from minidynamo.codegen.ir.size import hint, product
from minidynamo.codegen.scheduling.lifetimes import Lifetimes, defines, readers_of, reads, stores


def remove_unused(program: LoopProgram) -> LoopProgram:
    """Returns the program without dead loop nests, dead views and their buffers."""
    needed = {*names_in(program.outputs), *program.inputs}
    used: list[Node] = []
    for node in reversed(program.nodes):
        if defines(node) in needed or not _is_pure(node):
            needed.update(reads(node))
            used.append(node)
    used.reverse()
    alive = {*program.inputs, *program.constants, *map(defines, used)}
    buffers = {name: b for name, b in program.buffers.items() if name in alive}
    return dataclasses.replace(program, nodes=tuple(used), buffers=buffers)


def _is_pure(node: Node) -> bool:
    """Returns whether a node has no effect but its result."""
    if isinstance(node, Loops):
        return not node.body.checks
    if not isinstance(node, Extern) or not node.is_view:
        return False
    return node.op.namespace == "aten" and node.op is not torch.ops.aten.as_strided.default


CHEAP = 2
"""Up to this cost a value is computed once per reader, and once per element of a broadcast."""

MOST_COPIES = {"triton": 4}
DEAR = 2 * EXPENSIVE
"""MOST_COPIES: a reader may compute an element this many times if the element costs less than DEAR. On a GPU, storing
and reading the value takes longer."""

MOST_RECOMPUTED = 16
"""A reader may compute an element of a recomputed value at most this many times."""

LARGEST_EXPRESSION = 200
"""The number of nodes to which an expression may grow."""


def inline(program: LoopProgram, materialized: Collection[str] = (), recomputed: Collection[str] = ()) -> LoopProgram:
    """Returns the program with fewer buffers.

    A value in `materialized` keeps its buffer. A value in `recomputed` may be recomputed even if it costs more than
    CHEAP.
    """
    nodes = _Inliner(program, materialized, recomputed).run()
    return remove_unused(dataclasses.replace(program, nodes=nodes))


class _Inliner:
    """Inlines the values of a program in one walk."""

    def __init__(self, program: LoopProgram, materialized: Collection[str], recomputed: Collection[str]) -> None:
        self.program = program
        self.recomputed = recomputed
        self.lifetimes = Lifetimes(program)
        #: The nodes so far; None for a node that is inlined into all its readers.
        self.nodes: list[Node | None] = list(program.nodes)
        self.mutated = stores(program)
        self.copies = MOST_COPIES.get(program.target, 1)
        self.readers = readers_of(program)
        #: The values that keep their buffers.
        self.needed = {*names_in(program.outputs), *program.inputs, *materialized}
        self.needed |= {name for n in program.nodes if not isinstance(n, Loops) for name in reads(n)}
        folds = {n.out.name for n in program.nodes if isinstance(n, Loops) and n.combine is not None}
        self.folds = folds.difference(materialized)

    def run(self) -> tuple[Node, ...]:
        """Returns the remaining nodes."""
        for k in range(len(self.nodes)):
            producer = self.nodes[k]
            if isinstance(producer, Loops) and not self.keeps_buffer(producer):
                users = self.readers.get(producer.out.name, [])
                if users and all(self.may_inline(producer, k, u) for u in users):
                    self.inline(producer, k, users)
        return tuple(node for node in self.nodes if node is not None)

    def keeps_buffer(self, producer: Loops) -> bool:
        """Returns whether a value is not inlined into any reader."""
        name = producer.out.name
        if producer.combine is not None or name in self.needed:
            return True
        if self.folds.intersection(reads(producer)):
            return True  # stays in the kernel of the fold; the reader may have another order of loops
        users = self.readers.get(name, [])
        # If one reader copies the value into an input, the other readers may read that input.
        return len(users) > 1 and any(_is_input_copy(name, self.nodes[u], self.mutated) for u in users)

    def may_inline(self, producer: Loops, k: int, u: int) -> bool:
        """Returns whether the value of node k may be computed inside node u."""
        user = self.nodes[u]
        if not isinstance(user, Loops) or not self.is_cheap_in(producer, user):
            return False
        uses = [load for load in user.body.loads if load.buffer == producer.out.name]
        if len(user.body.below) + len(uses) * len(producer.body.below) > LARGEST_EXPRESSION:
            return False
        read = producer.body.loads
        segment, user_segment = self.lifetimes.segments[k], self.lifetimes.segments[u]
        if not all(self.lifetimes.may_read_later(load.buffer, segment, user_segment) for load in read):
            return False
        if any(k < self.mutated.get(root, k) < u for load in read for root in self.lifetimes.roots(load.buffer)):
            return False
        return _keeps_write_order(producer, user, read, uses, self.lifetimes, self.mutated) and _keeps_checks(
            producer, user, uses, self.program.buffers
        )

    def is_cheap_in(self, producer: Loops, user: Loops) -> bool:
        """Returns whether a reader may compute a value as often as it reads the value."""
        users, cost = len(self.readers[producer.out.name]), producer.body.cost
        uses = [load for load in user.body.loads if load.buffer == producer.out.name]
        points, user_points = _iterations(producer), _iterations(user)
        if producer.out.name in self.recomputed and user_points <= MOST_RECOMPUTED * points:
            return True
        # On a GPU, the parts of a joined tensor count as one use: each part reads other elements.
        are_parts = self.copies > 1 and users == 1 and cost < EXPENSIVE and all(use.valid is not None for use in uses)
        is_repeated = (len(uses) > 1 or users > 1) and not are_parts
        is_broadcast = user_points > points
        if not producer.body.loads:
            return cost < EXPENSIVE or not (is_repeated or is_broadcast)
        if is_repeated and (cost > CHEAP or len(producer.body.loads) > 2):
            return False
        return not is_broadcast or cost <= CHEAP or (cost < DEAR and user_points <= self.copies * points)

    def inline(self, producer: Loops, k: int, users: Sequence[int]) -> None:
        """Replaces the reads of the value of node k by its expression, in all readers."""
        for u in users:
            user = self.nodes[u]
            assert isinstance(user, Loops)
            self.nodes[u] = substitute(producer, user)
            for name in reads(producer):
                if u not in self.readers[name]:
                    self.readers[name].append(u)
        for name in reads(producer):
            self.readers[name].remove(k)
        self.nodes[k] = None


def _is_input_copy(name: str, user: Node | None, mutated: Collection[str]) -> bool:
    """Returns whether a node copies a value into an input unchanged."""
    is_copy = isinstance(user, Loops) and isinstance(user.body, Load) and user.body.buffer == name
    return is_copy and defines(user) in mutated  # type: ignore[arg-type]


def _keeps_write_order(
    producer: Loops,
    user: Loops,
    read: Sequence[Load],
    uses: Sequence[Load],
    lifetimes: Lifetimes,
    mutated: Collection[str],
) -> bool:
    """Returns whether a store into an input still reads the input only at the element that it writes.

    After inlining, the store may not read any other overwritten input, nor a view of an overwritten input.
    """
    if user.out.name not in mutated:
        return True
    written = [load for load in read if any(root in mutated for root in lifetimes.roots(load.buffer))]
    if not written:
        return True
    same = all(load.buffer == user.out.name for load in written)
    moved = [load for use in uses for load in expression_at(producer, use).loads if load.buffer in mutated]
    return same and all(load.index == user.index for load in moved)


def _keeps_checks(producer: Loops, user: Loops, uses: Sequence[Load], buffers: Mapping[str, Buffer]) -> bool:
    """Returns whether all indices are still checked: those of the producer's reads, and those of the `uses` of the
    producer."""
    if producer.body.checks and not all(use.valid is None and _reads_all(producer, user, use) for use in uses):
        return False
    checked = [use for use in uses if use.checks]
    return all(use.checks <= checks_kept(expression_at(producer, use), buffers) for use in checked)


def _reads_all(producer: Loops, user: Loops, use: Load) -> bool:
    """Returns whether `use` provably reads every element: in some order of dimensions, or in the order of memory."""
    axes = {as_index(axis): axis.extent for axis in user.axes}
    read = [i for i, axis in zip(use.index, producer.axes) if axis.extent != 1]
    extents = [axis.extent for axis in producer.axes if axis.extent != 1]
    if len({*read}) == len(read) and [axes.get(i) for i in read] == extents:
        return True
    shapes = [[axis.extent for axis in node.axes] for node in (producer, user)]
    offset, iteration = flatten(use.index, row_major(shapes[0])), flatten([*axes], row_major(shapes[1]))
    return product(shapes[0]) == product(shapes[1]) and offset == iteration


def _iterations(node: Loops) -> int:
    return hint(product(v.extent for v in node.axes))


def expression_at(producer: Loops, use: Load) -> Expr:
    """Returns the producer's expression for the element that `use` reads."""
    values = dict(zip(producer.axes, use.index))
    body = producer.body.substitute(values)
    return body if use.valid is None else mask(body, use.valid)


def substitute(producer: Loops, user: Loops) -> Loops:
    """Returns `user` with each read of the producer's buffer replaced by the producer's expression."""

    def replaced(e: Expr) -> Expr | None:
        return expression_at(producer, e) if isinstance(e, Load) and e.buffer == producer.out.name else None

    origins = merge(producer.origins, user.origins)
    return dataclasses.replace(user, body=rewrite(user.body, replaced), origins=origins)
