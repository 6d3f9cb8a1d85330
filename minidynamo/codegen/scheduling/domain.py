"""Owns the common iteration space of a kernel: rows and columns, and how loop nests are written over them.

Two loop nests can share a kernel if both can be written over a common domain such that each element passes from the
first nest to the second within an iteration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from minidynamo.codegen.ir.index import Index, Var, as_index, delinearize, flatten, row_major
from minidynamo.codegen.ir.loops import Loops
from minidynamo.codegen.ir.size import Extent, product
from minidynamo.core.records import record


@record(frozen=True)
class Domain:
    """An iteration space: rows, which are independent, times columns, which reductions fold."""

    #: All axes, in the order of the tensors' dimensions.
    axes: tuple[Var, ...]
    #: The axes that reductions fold; a subset of `axes`.
    columns: tuple[Var, ...]

    @property
    def rows(self) -> tuple[Var, ...]:
        """Returns the axes that are not folded."""
        return tuple(v for v in self.axes if v not in self.columns)


@record(frozen=True)
class Placed:
    """A loop nest written over a domain."""

    #: The loop nest, with the domain's axes.
    node: Loops
    #: Whether the nest runs once per row, instead of once per element.
    is_row: bool

    @property
    def name(self) -> str:
        """Returns the name of the buffer that the nest computes."""
        return self.node.out.name

    @property
    def is_element(self) -> bool:
        """Returns whether the nest computes a value per element, and folds nothing."""
        return not self.is_row and self.node.combine is None


def size(axes: Iterable[Var]) -> Extent:
    """Returns the number of points of an iteration space."""
    return product(v.extent for v in axes)


def domain_of(nodes: Sequence[Loops]) -> Domain:
    """Returns the domain to try for these nodes: the domain of the first reduction, else of the node with most axes."""
    reductions = [n for n in nodes if n.combine is not None]
    leader = reductions[0] if reductions else max(nodes, key=lambda n: sum(v.extent not in (0, 1) for v in n.axes))
    axes = [Var(f"i{k}", v.extent) for k, v in enumerate(v for v in leader.axes if v.extent != 1)]
    names = iter(axes)
    columns = [a for v, a in ((v, next(names)) for v in leader.axes if v.extent != 1) if v in leader.reduced]
    return Domain(tuple(axes), tuple(columns))


def place(node: Loops, domain: Domain) -> Placed | None:
    """Writes `node` over `domain`, element k of the node at point k of the domain, in row-major order; None if it does
    not fit."""
    total, rows = size(domain.axes), size(domain.rows)
    points = size(node.axes)
    if node.combine is not None:
        placed = _onto(node, domain.axes) if points == total else None
        if placed is None or not _folds_columns(node, domain):
            return None
        return Placed(dataclasses.replace(placed, reduced=domain.columns), False)
    if points == total:
        return Placed(_onto(node, domain.axes), total == rows and bool(domain.columns))
    if domain.columns and points == rows:
        return Placed(_onto(node, domain.rows), True)
    return None


def _coordinates(node: Loops, axes: tuple[Var, ...]) -> dict[Var, Index]:
    flat = flatten([as_index(v) for v in axes], row_major([v.extent for v in axes]))
    return dict(zip(node.axes, delinearize(flat, [v.extent for v in node.axes])))


def _onto(node: Loops, axes: tuple[Var, ...]) -> Loops:
    if node.axes == axes:
        return node
    values = _coordinates(node, axes)
    return dataclasses.replace(
        node,
        axes=axes,
        index=tuple(i.substitute(values) for i in node.index),
        body=node.body.substitute(values),
        position=None if node.position is None else node.position.substitute(values),
    )


def _folds_columns(node: Loops, domain: Domain) -> bool:
    """Returns whether the folded axes cover exactly the columns of the domain."""
    values = _coordinates(node, domain.axes)
    columns, rows = set(domain.columns), set(domain.rows)
    folded = all(values[v].variables() <= columns for v in node.reduced)
    kept = all(values[v].variables() <= rows for v in node.ranges)
    return folded and kept and size(node.reduced) == size(domain.columns)


def place_all(
    nodes: Sequence[Loops], domain: Domain, place: Callable[[Loops, Domain], Placed | None] = place
) -> list[Placed] | None:
    """Writes all nodes over a domain. Returns None if a node does not fit, or reads another node at a different point.

    `place` may cache its results.
    """
    placed: list[Placed] = []
    placed_by_name: dict[str, Placed] = {}
    for node in nodes:
        nest = place(node, domain)
        if nest is None:
            return None
        for load in nest.node.body.loads:
            producer = placed_by_name.get(load.buffer)
            if producer is not None and not _same_point(producer, nest, load.index):
                return None
        placed.append(nest)
        placed_by_name[node.out.name] = nest
    return placed


def _same_point(producer: Placed, reader: Placed, index: tuple[Index, ...]) -> bool:
    if index != producer.node.index:
        return False
    per_row = producer.is_row or producer.node.combine is not None
    return per_row or not reader.is_row
