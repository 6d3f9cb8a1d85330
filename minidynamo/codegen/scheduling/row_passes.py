"""Owns the question when, within one row, each loop nest of a group is computed.

Columns are walked in passes 0, 1, ...; behind each pass stands a row section, where values that exist once per row
are computed. Section -1 comes before the first pass.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from minidynamo.codegen.ir.expr import EXPENSIVE, cost, loads
from minidynamo.codegen.scheduling.domain import Domain, Placed, size

KEPT_BYTES = 1 << 16
"""A value that is kept from one pass to the next may take this many bytes per row."""


@dataclass(frozen=True)
class Passes:
    """`first[name]`: pass (of elements and folds) or section (of row values) where a value is made. `extra[name]`:
    later passes in which an element is made again. `kept`: elements that later passes read instead. `within`: elements
    that are read again in later passes, from the memory of a result that is not stored before, or their own."""

    first: Mapping[str, int]
    extra: Mapping[str, frozenset[int]]
    kept: frozenset[str]
    within: Mapping[str, tuple[str, frozenset[int]]]
    count: int


def reads_in_group(placed: Sequence[Placed], stores: frozenset[str]) -> dict[str, list[str]]:
    """For each loop nest the values of the group that it reads. Names in `stores` are inputs: they have old values."""
    made = {p.node.out.name for p in placed} - stores
    return {
        p.node.out.name: list(dict.fromkeys(load.buffer for load in loads(p.node.body) if load.buffer in made))
        for p in placed
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
    """Earliest passes for all values, then later ones for elements that are needed late only. `reads_back`: a pass may
    read what an earlier one has stored."""
    reads = reads_in_group(placed, stores)
    by_name = {p.node.out.name: p for p in placed}
    first: dict[str, int] = {}
    for p in placed:
        first[p.node.out.name] = _earliest(p, [(by_name[r], first[r]) for r in reads[p.node.out.name]])
    readers: dict[str, list[str]] = {name: [] for name in by_name}
    for name, read in reads.items():
        for r in read:
            readers[r].append(name)
    for p in reversed(placed):
        name = p.node.out.name
        if _is_element(p) and name not in needed and readers[name]:
            first[name] = min(first[r] for r in readers[name])
    kept: set[str] = set()
    extra: dict[str, set[int]] = {name: set() for name in by_name}
    within: dict[str, tuple[str, frozenset[int]]] = {}
    results = [p for p in placed if reads_back and p.node.out.name in needed - stores and _is_element(p)]
    for p in reversed(placed):
        name = p.node.out.name
        if not _is_element(p):
            continue
        late = {q for r in readers[name] for q in ({first[r]} | extra[r]) if not by_name[r].is_row} - {first[name]}
        width = size(domain.columns) * p.node.out.dtype.itemsize
        worth_it = bool(late) and may_keep and cost(p.node.body) >= EXPENSIVE
        if worth_it and isinstance(width, int) and width <= KEPT_BYTES:
            kept.add(name)
            continue
        taken = {place for place, _ in within.values()}
        place = _room(p, max(late), results, first, taken) if worth_it else None
        used = _reads_outside(placed, p, first, readers)
        # What is read behind the first store of a result could not lie in the same memory.
        if place is None or (place != name and used > first[name]):
            extra[name] = late
        else:
            within[name] = place, frozenset(late)
    count = 1 + max((t for name, t in first.items() if not by_name[name].is_row), default=-1)
    return Passes(first, {n: frozenset(e) for n, e in extra.items()}, frozenset(kept), within, count)


def _room(
    p: Placed, last: int, results: Sequence[Placed], first: Mapping[str, int], taken: Collection[str]
) -> str | None:
    """A result in whose memory an element may lie up to the `last` pass: itself, or one that is not stored before."""
    for q in results:
        is_free = (q is p or last <= first[q.node.out.name]) and q.node.out.name not in taken
        if is_free and q.node.out.dtype == p.node.out.dtype:
            return q.node.out.name
    return None


def _reads_outside(
    placed: Sequence[Placed], but: Placed, first: Mapping[str, int], readers: Mapping[str, Sequence[str]]
) -> int:
    """The last pass in which a value, `but` for one, may be made of memory from outside of the group."""
    last = -1
    for q in placed:
        if q is not but and not q.is_row and any(load.buffer not in readers for load in loads(q.node.body)):
            again = [first[r] for r in readers[q.node.out.name] if r != but.node.out.name] if _is_element(q) else []
            last = max(last, first[q.node.out.name], *again)
    return last


def _is_element(p: Placed) -> bool:
    return not p.is_row and p.node.combine is None


def _earliest(p: Placed, before: Sequence[tuple[Placed, int]]) -> int:
    if p.is_row:
        return max((time for _, time in before), default=-1)
    return max((time if _is_element(q) else time + 1 for q, time in before), default=0)
