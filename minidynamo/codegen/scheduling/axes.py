"""Owns the order and number of a kernel's loops: innermost loops follow memory order, axes that are contiguous in
memory are joined, and axes that indices divide are split.

Only variables change; statements keep their order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from minidynamo.codegen.ir.expr import Load
from minidynamo.codegen.ir.index import FloorDiv, Index, Lookup, Mod, Var, as_index
from minidynamo.codegen.ir.loops import Accumulate, Kernel, Let, Loop, Statement, Store, indices_in
from minidynamo.codegen.ir.size import hint


def arrange(kernel: Kernel) -> Kernel:
    """Returns the kernel with its loops in memory order, joined where possible, and with `vector` set."""
    columns = next((loop.axes for loop in kernel.loops if loop.axes), ())
    kernel = _with_axes(kernel, _sorted(kernel.rows, kernel), _sorted(columns, kernel))
    kernel = _join(_split(_join(_join(kernel, rows=True), rows=False)), rows=True)
    columns = next((loop.axes for loop in kernel.loops if loop.axes), ())
    renamed = {v: Var(f"y{k}", v.extent) for k, v in enumerate(kernel.rows)}
    renamed |= {v: Var(f"x{k}", v.extent) for k, v in enumerate(columns)}
    kernel = _replace_variables(kernel, {v: as_index(new) for v, new in renamed.items()})
    rows, columns = tuple(renamed[v] for v in kernel.rows), tuple(renamed[v] for v in columns)
    kernel = _with_axes(kernel, rows, columns)
    if any(isinstance(s, Let) and s.kept for s in kernel.statements()):
        return dataclasses.replace(kernel, vector=columns[-1])  # kept values are those of one row at a time
    inner = [i for loop in kernel.loops if loop.axes for s in loop.body for i in _offsets(s)]
    return dataclasses.replace(kernel, vector=vector_of(rows, columns, inner))


def vector_of(rows: Sequence[Var], columns: Sequence[Var], offsets: Sequence[Index]) -> Var | None:
    """Returns the axis along which most accesses are contiguous: the last column, or a row if more accesses are
    contiguous along the row.

    Only the accesses that depend on the most axes count: values that are read once per row or column cause little
    traffic.
    """
    if not columns:
        return rows[-1] if rows else None
    most_axes = max((len(i.variables()) for i in offsets), default=0)
    offsets = [i for i in offsets if len(i.variables()) == most_axes]

    def contiguous(axes: Sequence[Var]) -> tuple[int, Var | None]:
        counts = [(sum(i.coefficient(v) in (1, -1) for i in offsets), k, v) for k, v in enumerate(axes)]
        accesses, _, best = max(counts, default=(0, 0, None), key=lambda c: c[:2])
        return accesses, best

    by_row, row = contiguous(rows)
    by_column, _ = contiguous(columns)
    return row if by_row > by_column else columns[-1]


def _offsets(s: Statement) -> Iterator[Index]:
    """Yields the storage offsets of all reads and writes of a statement."""
    if isinstance(s, Store):
        yield s.index
    for e in s.value.below:
        if isinstance(e, Load):
            yield e.index[0]


def _sorted(axes: Sequence[Var], kernel: Kernel) -> tuple[Var, ...]:
    """Sorts axes by stride, large strides first: by the stride in the widest store, then in the widest load."""
    stored = [s.index for s in kernel.statements() if isinstance(s, Store)]
    loaded = [i for s in kernel.statements() for i in _offsets(s)]

    def widest(offsets: Iterable[Index]) -> Index:
        return max(offsets, key=lambda i: sum(i.coefficient(v) != 0 for v in axes), default=Index())

    first, second = widest(stored), widest(loaded)

    def key(v: Var) -> tuple[int, int, int]:
        strides = [abs(hint(i.coefficient(v))) for i in (first, second)]
        return -strides[0], -strides[1], axes.index(v)

    return tuple(sorted(axes, key=key))


def _with_axes(kernel: Kernel, rows: tuple[Var, ...], columns: tuple[Var, ...]) -> Kernel:
    loops = tuple(Loop(columns if loop.axes else (), loop.body) for loop in kernel.loops)
    return dataclasses.replace(kernel, rows=rows, loops=loops)


def _replace_variables(kernel: Kernel, values: Mapping[Var, Index]) -> Kernel:
    def changed(s: Statement) -> Statement:
        value = s.value.substitute(values)
        if isinstance(s, Store):
            return dataclasses.replace(s, index=s.index.substitute(values), value=value)
        if isinstance(s, Accumulate) and s.position is not None:
            return dataclasses.replace(s, value=value, position=s.position.substitute(values))
        return dataclasses.replace(s, value=value)

    loops = tuple(Loop(loop.axes, tuple(changed(s) for s in loop.body)) for loop in kernel.loops)
    return dataclasses.replace(kernel, loops=loops)


def _divisions(index: Index) -> int:
    """Returns the number of divisions that an index needs."""
    total = 0
    for atom, _ in index.terms:
        match atom:
            case FloorDiv() | Mod():
                total += 1 + _divisions(atom.base)
            case Lookup():
                total += sum(_divisions(e.index[0]) for e in atom.value.below if isinstance(e, Load))
    return total


def _divisions_of(kernel: Kernel) -> int:
    """Returns the number of divisions that the indices of a kernel need."""
    return sum(_divisions(index) for s in kernel.statements() for index in indices_in(s))


def _join(kernel: Kernel, *, rows: bool) -> Kernel:
    """Joins neighbouring axes, innermost first, if no index needs more divisions afterwards."""
    k = 0
    while True:
        columns = next((loop.axes for loop in kernel.loops if loop.axes), ())
        axes = kernel.rows if rows else columns
        if k + 1 >= len(axes) or 0 in {v.extent for v in axes}:
            return kernel
        outer, inner = axes[len(axes) - k - 2], axes[len(axes) - k - 1]
        joined = Var(f"{outer.name}{inner.name}", outer.extent * inner.extent)
        flat = as_index(joined)
        values = {outer: flat // inner.extent, inner: flat % inner.extent}
        before = _divisions_of(kernel)
        changed = _replace_variables(kernel, values)
        if _divisions_of(changed) > before:
            k += 1
            continue
        fewer = (*axes[: len(axes) - k - 2], joined, *axes[len(axes) - k :])
        kernel = _with_axes(changed, fewer if rows else kernel.rows, columns if rows else fewer)


# The smallest inner extent of a split axis: shorter loops are not worth a vector instruction.
_LEAST_SPLIT = 16


def _split(kernel: Kernel) -> Kernel:
    """Splits axes of a pointwise kernel on the CPU where this saves divisions: no vector instruction divides, and the
    addresses within the inner loop become contiguous.

    A reshape to other dimensions has such indices: blocks of quantized weights, or the heads of attention.
    """
    if kernel.device.type != "cpu" or any(loop.axes for loop in kernel.loops):
        return kernel
    before = _divisions_of(kernel)
    for axis in kernel.rows if before else ():
        for divisor in sorted(_divisors(kernel, axis)):
            outer, inner = Var(f"{axis.name}a", axis.extent // divisor), Var(f"{axis.name}b", divisor)  # type: ignore[operator]
            changed = _replace_variables(kernel, {axis: as_index(outer) * divisor + as_index(inner)})
            if _divisions_of(changed) < before:
                position = kernel.rows.index(axis)
                rows = (*kernel.rows[:position], outer, inner, *kernel.rows[position + 1 :])
                return _split(_with_axes(changed, rows, ()))
    return kernel


def _divisors(kernel: Kernel, axis: Var) -> set[int]:
    """Returns the numbers by which an axis may be split."""
    found = set()
    for index in (index for s in kernel.statements() for index in indices_in(s)):
        for atom, _ in index.terms:
            if not isinstance(atom, FloorDiv | Mod) or atom.base != as_index(axis):
                continue
            by = atom.divisor if isinstance(atom, FloorDiv) else atom.modulus
            if isinstance(by, int) and isinstance(axis.extent, int) and axis.extent % by == 0:
                found |= {by} if _LEAST_SPLIT <= by < axis.extent else set()
    return found
