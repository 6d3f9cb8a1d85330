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
    lifetimes = Lifetimes(program)
    nodes: list[Node | None] = list(program.nodes)
    needed = {*names_in(program.outputs), *program.inputs, *materialized}
    needed |= {name for n in program.nodes if not isinstance(n, Loops) for name in reads(n)}
    mutated = stores(program)
    copies = MOST_COPIES.get(program.target, 1)
    folds = {n.out.name for n in program.nodes if isinstance(n, Loops) and n.combine is not None}.difference(
        materialized
    )
    readers = readers_of(program)
    for k, producer in enumerate(program.nodes):
        producer_now = nodes[k]
        if not isinstance(producer_now, Loops) or producer_now.combine is not None or defines(producer) in needed:
            continue
        if folds.intersection(reads(producer_now)):
            continue  # stays in the kernel of the fold; the reader may have another order of loops
        users = readers.get(defines(producer), [])
        if len(users) > 1 and any(_is_input_copy(defines(producer), nodes[u], mutated) for u in users):
            continue  # the other readers may read the value from the input
        if users and all(
            _may_inline(
                producer_now, k, u, nodes, lifetimes, mutated, len(users), defines(producer) in recomputed, copies
            )
            and _keeps_checks(producer_now, nodes[u], program.buffers)
            for u in users
        ):
            for u in users:
                user = nodes[u]
                assert isinstance(user, Loops)
                nodes[u] = substitute(producer_now, user)
                for name in reads(producer_now):
                    if u not in readers[name]:
                        readers[name].append(u)
            for name in reads(producer_now):
                readers[name].remove(k)
            nodes[k] = None
    return remove_unused(dataclasses.replace(program, nodes=tuple(n for n in nodes if n is not None)))


def _is_input_copy(name: str, user: Node | None, mutated: Collection[str]) -> bool:
    """Returns whether a node copies a value into an input unchanged."""
    is_copy = isinstance(user, Loops) and isinstance(user.body, Load) and user.body.buffer == name
    return is_copy and defines(user) in mutated  # type: ignore[arg-type]


def _may_inline(
    producer: Loops,
    k: int,
    u: int,
    nodes: list[Node | None],
    lifetimes: Lifetimes,
    mutated: dict[str, int],
    users: int,
    recomputed: bool,
    copies: int,
) -> bool:
    user = nodes[u]
    if not isinstance(user, Loops):
        return False
    name = producer.out.name
    uses = [load for load in user.body.loads if load.buffer == name]
    read = producer.body.loads
    # On a GPU, the parts of a joined tensor count as one use: each part reads other elements.
    are_parts = (
        copies > 1 and users == 1 and producer.body.cost < EXPENSIVE and all(use.valid is not None for use in uses)
    )
    is_repeated = (len(uses) > 1 or users > 1) and not are_parts
    is_broadcast = _iterations(user) > _iterations(producer)
    if recomputed and _iterations(user) <= MOST_RECOMPUTED * _iterations(producer):
        pass
    elif read:
        work = producer.body.cost
        if is_repeated and (work > CHEAP or len(read) > 2):
            return False
        if is_broadcast and work > CHEAP and (work >= DEAR or _iterations(user) > copies * _iterations(producer)):
            return False
    elif (is_repeated or is_broadcast) and producer.body.cost >= EXPENSIVE:
        return False
    if len(user.body.below) + len(uses) * len(producer.body.below) > LARGEST_EXPRESSION:
        return False
    segment, user_segment = lifetimes.segments[k], lifetimes.segments[u]
    if not all(lifetimes.may_read_later(load.buffer, segment, user_segment) for load in read):
        return False
    if any(k < mutated.get(root, k) < u for load in read for root in lifetimes.roots(load.buffer)):
        return False
    return _keeps_write_order(producer, user, read, uses, lifetimes, mutated)


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


def _keeps_checks(producer: Loops, user: Node | None, buffers: Mapping[str, Buffer]) -> bool:
    """Returns whether all indices are still checked: those of the producer's reads, and those of the reads of the
    producer."""
    assert isinstance(user, Loops)
    uses = [load for load in user.body.loads if load.buffer == producer.out.name]
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
