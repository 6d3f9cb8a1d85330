"""Owns the construction of kernels: a group of loop nests becomes statements in loops.

Values become registers, coordinates become storage offsets, and values without readers outside the kernel are not
stored. Afterwards `axes.py` improves the order of the loops.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from minidynamo.codegen.ir.expr import Cast, Expr, Load, Ref, children, rewrite
from minidynamo.codegen.ir.index import Index, flatten
from minidynamo.codegen.ir.loops import (
    Accumulate,
    Buffer,
    Kernel,
    Let,
    Loop,
    Loops,
    Statement,
    Store,
    folded_dtype,
    numbers_between,
)
from minidynamo.codegen.scheduling.axes import arrange, vector_of
from minidynamo.codegen.scheduling.fuse import Group
from minidynamo.codegen.scheduling.row_passes import Passes, find_passes


def build_kernel(
    group: Group,
    name: str,
    buffers: Mapping[str, Buffer],
    needed: frozenset[str],
    inputs: frozenset[str],
    *,
    reads_back: bool,
) -> Kernel:
    """Builds the kernel of a group.

    `needed` are the values that are read outside the kernel, `inputs` the values that are inputs of the caller. With
    `reads_back` a loop may read the stores of an earlier loop.
    """
    kernel = arrange(KernelBuilder(group, buffers, needed | inputs, inputs, reads_back).build(name))
    return dataclasses.replace(kernel, numbers=numbers_between(kernel.rows, kernel.loops))


class KernelBuilder:
    """Builds the kernel of one group."""

    def __init__(
        self,
        group: Group,
        buffers: Mapping[str, Buffer],
        needed: frozenset[str],
        inputs: frozenset[str],
        reads_back: bool,
    ) -> None:
        self.group = group
        self.buffers = buffers
        self.placed = {p.name: p for p in group.placed}
        self.stores = frozenset(name for name in self.placed if name in inputs)
        self.needed = frozenset(name for name in self.placed if name in needed)
        self.used_names: set[str] = set()
        by_column = vector_of(group.domain.rows, group.domain.columns, list(self._offsets())) in group.domain.columns
        self.passes: Passes = find_passes(
            group.placed, group.domain, self.needed, self.stores, may_keep=by_column, reads_back=reads_back
        )

    def _offsets(self) -> Iterable[Index]:
        for p in self.group.placed:
            if not p.is_row:
                for load in p.node.body.loads:
                    if load.buffer not in self.placed or load.buffer in self.stores:
                        yield flatten(load.index, self.buffers[load.buffer].stride)

    def build(self, name: str) -> Kernel:
        """Builds all passes and row sections, in order."""
        domain = self.group.domain
        loops = [Loop((), self._row_section(-1))]
        for t in range(self.passes.count):
            loops += [Loop(domain.columns, self._pass(t)), Loop((), self._row_section(t))]
        loops = list(fold_into_stores([loop for loop in loops if loop.body]))
        written = tuple(self.placed[n].node.out for n in self.placed if n in self.needed)
        names = {b.name for b in written}
        read = dict.fromkeys(
            load.buffer for loop in loops for s in loop.body for load in s.value.loads if load.buffer not in names
        )
        device = written[0].device
        reads = tuple(self.buffers[n] for n in read)
        return Kernel(name, reads, written, domain.rows, tuple(loops), None, device)

    def _fresh(self, buffer: str) -> str:
        """Returns a new name for a value that is read from `buffer`."""
        used_names = self.used_names
        name, k = f"{buffer}_at", 1
        while name in used_names or name in self.buffers:
            k += 1
            name = f"{buffer}_at{k}"
        used_names.add(name)
        return name

    def _pass(self, t: int) -> tuple[Statement, ...]:
        """Returns the elements and folds of a pass. In a kernel without columns the only pass is the row section."""
        lets: list[Statement] = []
        folds: list[Statement] = []
        stores: list[Statement] = []
        for name, p in self.placed.items():
            first = t == self.passes.first[name]
            reused_result, reread = self.passes.stored_in.get(name, ("", frozenset()))
            if p.is_row or not (first or t in self.passes.recomputed[name] or t in reread):
                continue
            value = self._value(p.node)
            if p.node.combine is not None:
                folds.append(self._fold(p.node, value))
                continue
            kept = name in self.passes.kept and bool(self.group.domain.columns)
            if reused_result and not first:
                value = Load(reused_result, (self._store(self.placed[reused_result].node).index,), p.node.out.dtype)
            lets.append(Let(name, value, kept, p.node.origins))
            if name in self.needed and first:
                stores.append(self._store(p.node))
            elif reused_result and first:
                stores.append(
                    dataclasses.replace(self._store(self.placed[reused_result].node), value=Ref(name, value.dtype))
                )
        return share_loads([*lets, *folds, *stores], self._fresh)

    def _row_section(self, t: int) -> tuple[Statement, ...]:
        lets: list[Statement] = []
        stores: list[Statement] = []
        for name, p in self.placed.items():
            node = p.node
            if self.passes.first[name] != t or not (p.is_row or node.combine is not None):
                continue
            if p.is_row:
                lets.append(Let(name, self._value(node), origins=node.origins))
            elif _fold_dtype(node) != node.out.dtype:
                fold = Ref(f"{name}_fold", _fold_dtype(node))
                lets.append(Let(name, Cast(fold, node.out.dtype), origins=node.origins))
            if name in self.needed:
                stores.append(self._store(node))
        return share_loads([*lets, *stores], self._fresh)

    def _fold(self, node: Loops, value: Expr) -> Accumulate:
        assert node.combine is not None and node.accumulate is not None
        name = node.out.name if _fold_dtype(node) == node.out.dtype else f"{node.out.name}_fold"
        return Accumulate(name, node.combine, value, node.accumulate, node.position, node.origins)

    def _store(self, node: Loops) -> Store:
        value = Ref(node.out.name, node.out.dtype)
        return Store(node.out.name, flatten(node.index, node.out.stride), value, node.origins)

    def _value(self, node: Loops) -> Expr:
        def replaced(e: Expr) -> Expr | None:
            if not isinstance(e, Load):
                return None
            if e.buffer in self.placed and e.buffer not in self.stores:
                return Ref(e.buffer, e.dtype)
            return Load(e.buffer, (flatten(e.index, self.buffers[e.buffer].stride),), e.dtype, e.valid)

        return rewrite(node.body, replaced)


def _fold_dtype(node: Loops) -> torch.dtype:
    """Returns the dtype of a finished fold."""
    assert node.accumulate is not None and node.combine is not None
    return folded_dtype(node.combine, node.accumulate)


def share_loads(body: Sequence[Statement], fresh: Callable[[str], str]) -> tuple[Statement, ...]:
    """Names each load that occurs more than once. Loads through looked-up indices stay in place."""
    uses = Counter(load for s in body for load in s.value.loads if not children(load))
    names: dict[Expr, Ref] = {}
    result: list[Statement] = []
    for s in body:
        for load in s.value.loads:
            if uses[load] > 1 and load not in names:
                names[load] = Ref(fresh(load.buffer), load.dtype)
                result.append(Let(names[load].name, load, origins=s.origins))
        result.append(dataclasses.replace(s, value=rewrite(s.value, names.get)))
    return tuple(result)


def fold_into_stores(loops: Sequence[Loop]) -> tuple[Loop, ...]:
    """Moves a value into its store if the store is its only use, in loops with a single store.

    With several stores, all values are computed before all stores: a store may overwrite an operand of another value.
    """
    uses_in_kernel = Counter(e.name for loop in loops for s in loop.body for e in s.value.below if isinstance(e, Ref))
    result: list[Loop] = []
    for loop in loops:
        uses_in_loop = Counter(e.name for s in loop.body for e in s.value.below if isinstance(e, Ref))
        uses = uses_in_loop if loop.axes else uses_in_kernel
        has_single_store = sum(isinstance(s, Store) for s in loop.body) == 1
        last = loop.body[-1]
        value = next((s for s in loop.body if isinstance(last, Store) and _defines(s, last.value)), None)
        if (
            has_single_store
            and isinstance(last, Store)
            and isinstance(value, Let)
            and uses[value.name] == 1
            and not value.kept
        ):
            rest = tuple(s for s in loop.body[:-1] if s is not value)
            loop = Loop(loop.axes, (*rest, dataclasses.replace(last, value=value.value)))
        result.append(loop)
    return tuple(result)


def _defines(s: Statement, value: Expr) -> bool:
    return isinstance(s, Let) and isinstance(value, Ref) and s.name == value.name
