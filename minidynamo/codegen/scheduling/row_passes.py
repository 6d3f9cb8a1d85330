"""Owns the order of computation within a row: the pass, or the row section, of each loop nest of a group.

A kernel walks over the columns of a row in passes 0, 1, ... After each pass comes a row section, which computes the
values that exist once per row. Section -1 comes before the first pass.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from minidynamo.codegen.ir.expr import EXPENSIVE
from minidynamo.codegen.scheduling.domain import Domain, Placed, size
from minidynamo.core.records import record

KEPT_BYTES = 1 << 16
"""The most bytes per row that a value may take to be kept from a pass to the next."""


@record(frozen=True)
class Passes:
    """The passes and row sections of a kernel."""

    #: Value -> its first pass (elements and folds) or its section (row values).
    first: Mapping[str, int]
    #: Element -> later passes with a recomputation of the element.
    recomputed: Mapping[str, frozenset[int]]
    #: Elements that later passes read from a buffer per row instead of computing them again.
    kept: frozenset[str]
    #: Element -> (a result, the later passes that read the element from the memory of this result). The result is the
    #: element itself or is stored no earlier than the last of these passes.
    stored_in: Mapping[str, tuple[str, frozenset[int]]]
    #: The number of passes.
    count: int


def reads_in_group(placed: Sequence[Placed], stores: frozenset[str]) -> dict[str, list[str]]:
    """Returns, per loop nest, the values of the group that it reads. Names in `stores` are inputs: reads get old
    values."""
    names = {p.name for p in placed} - stores
    return {
        p.name: list(dict.fromkeys(load.buffer for load in p.node.body.loads if load.buffer in names)) for p in placed
    }


def find_passes(
    placed: Sequence[Placed],
    domain: Domain,
    needed: frozenset[str],
    stores: frozenset[str],
    *,
    may_keep: bool,
    reads_back: bool,
) -> Passes:
    """Finds the earliest pass of each value, then a later pass for elements with late readers only.

    With `reads_back` a pass may read the stores of an earlier pass.
    """
    by_name = {p.name: p for p in placed}
    reads = reads_in_group(placed, stores)
    readers: dict[str, list[str]] = {name: [] for name in by_name}
    for reader, names in reads.items():
        for name in names:
            readers[name].append(reader)
    first = _first_passes(placed, reads, readers, needed)
    kept: set[str] = set()
    recomputed: dict[str, set[int]] = {name: set() for name in by_name}
    stored_in: dict[str, tuple[str, frozenset[int]]] = {}
    results = [p for p in placed if reads_back and p.name in needed - stores and p.is_element]
    for p in reversed(placed):
        name = p.name
        if not p.is_element:
            continue
        passes_with_readers = {q for r in readers[name] if not by_name[r].is_row for q in (first[r], *recomputed[r])}
        later_passes = passes_with_readers - {first[name]}
        width = size(domain.columns) * p.node.out.dtype.itemsize
        pays_off = bool(later_passes) and may_keep and p.node.body.cost >= EXPENSIVE
        if pays_off and isinstance(width, int) and width <= KEPT_BYTES:
            kept.add(name)
            continue
        used_results = {result for result, _ in stored_in.values()}
        result = _result_memory(p, max(later_passes), results, first, used_results) if pays_off else None
        last_read = _reads_outside(placed, p, first, readers)
        # Memory that is read after the first store of a result cannot be reused for the result.
        if result is None or (result != name and last_read > first[name]):
            recomputed[name] = later_passes
        else:
            stored_in[name] = result, frozenset(later_passes)
    count = 1 + max((t for name, t in first.items() if not by_name[name].is_row), default=-1)
    return Passes(first, {n: frozenset(e) for n, e in recomputed.items()}, frozenset(kept), stored_in, count)


def _first_passes(
    placed: Sequence[Placed],
    reads: Mapping[str, Sequence[str]],
    readers: Mapping[str, Sequence[str]],
    needed: frozenset[str],
) -> dict[str, int]:
    """Returns the first pass or section of each value: the earliest possible, for an element that is not `needed` the
    pass of its first reader."""
    by_name = {p.name: p for p in placed}
    first: dict[str, int] = {}
    for p in placed:
        first[p.name] = _earliest(p, [(by_name[name], first[name]) for name in reads[p.name]])
    for p in reversed(placed):
        if p.is_element and p.name not in needed and readers[p.name]:
            first[p.name] = min(first[reader] for reader in readers[p.name])
    return first


def _result_memory(
    p: Placed, last: int, results: Sequence[Placed], first: Mapping[str, int], used_results: Collection[str]
) -> str | None:
    """Returns a result whose memory can hold an element until the `last` pass: the element itself, or a result that is
    stored no earlier."""
    for q in results:
        is_free = (q is p or last <= first[q.name]) and q.name not in used_results
        if is_free and q.node.out.dtype == p.node.out.dtype:
            return q.name
    return None


def _reads_outside(
    placed: Sequence[Placed], excluded: Placed, first: Mapping[str, int], readers: Mapping[str, Sequence[str]]
) -> int:
    """Returns the last pass in which a value other than `excluded` may be computed from memory outside the group."""
    last = -1
    for q in placed:
        if q is not excluded and not q.is_row and any(load.buffer not in readers for load in q.node.body.loads):
            recomputing = [first[r] for r in readers[q.name] if r != excluded.name] if q.is_element else []
            last = max(last, first[q.name], *recomputing)
    return last


def _earliest(p: Placed, before: Sequence[tuple[Placed, int]]) -> int:
    if p.is_row:
        return max((time for _, time in before), default=-1)
    return max((time if q.is_element else time + 1 for q, time in before), default=0)
