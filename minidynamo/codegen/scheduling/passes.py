"""Owns the question when, within one row, each loop nest of a group is computed.

Columns are walked in passes 0, 1, ...; behind each pass stands a row section, where values that exist once per row
are computed. Section -1 comes before the first pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minidynamo.codegen.ir.expr import EXPENSIVE, cost, loads
from minidynamo.codegen.scheduling.domain import Domain, Placed, size

KEPT_BYTES = 1 << 16
"""A value that is kept from one pass to the next may take this many bytes per row."""


@dataclass(frozen=True)
class Passes:
    """`first[name]`: pass (of elements and folds) or section (of row values) where a value is made. `extra[name]`:
    later passes in which an element is made again. `kept`: elements that later passes read instead."""

    first: Mapping[str, int]
    extra: Mapping[str, frozenset[int]]
    kept: frozenset[str]
    count: int


def reads_in_group(placed: Sequence[Placed], stores: frozenset[str]) -> dict[str, list[str]]:
    """For each loop nest the values of the group that it reads. Names in `stores` are inputs: they have old values."""
    made = {p.node.out.name for p in placed} - stores
    return {
        p.node.out.name: list(dict.fromkeys(load.buffer for load in loads(p.node.body) if load.buffer in made))
        for p in placed
    }


def find_passes(
    placed: Sequence[Placed], domain: Domain, needed: frozenset[str], stores: frozenset[str], may_keep: bool
) -> Passes:
    """Earliest passes for all values, then later ones for elements that are needed late only."""
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
    for p in reversed(placed):
        name = p.node.out.name
        if not _is_element(p):
            continue
        late = {q for r in readers[name] for q in ({first[r]} | extra[r]) if not by_name[r].is_row} - {first[name]}
        width = size(domain.columns) * p.node.out.dtype.itemsize
        if late and may_keep and isinstance(width, int) and width <= KEPT_BYTES and cost(p.node.body) >= EXPENSIVE:
            kept.add(name)
        else:
            extra[name] = late
    count = 1 + max((t for name, t in first.items() if not by_name[name].is_row), default=-1)
    return Passes(first, {n: frozenset(e) for n, e in extra.items()}, frozenset(kept), count)


def _is_element(p: Placed) -> bool:
    return not p.is_row and p.node.combine is None


def _earliest(p: Placed, before: Sequence[tuple[Placed, int]]) -> int:
    if p.is_row:
        return max((time for _, time in before), default=-1)
    return max((time if _is_element(q) else time + 1 for q, time in before), default=0)
