"""Owns the spelling of kernels in C++: one translation unit for all kernels of a graph.

What is computed was decided by the scheduler; how a function is approximated stands in `runtime/include/vecmath.h`.
A kernel becomes a function over a range of items (rows, or blocks of neighbouring rows), which threads share, and an
entry point for Python.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from minidynamo.codegen.ir.index import Var, as_index, flatten, row_major
from minidynamo.codegen.ir.loops import Accumulate, Kernel, Let, Loop, Statement, Store
from minidynamo.codegen.printers.base import (
    Form,
    Layout,
    Lines,
    extent_of,
    layout_of,
    stores_last,
)
from minidynamo.codegen.printers.cpp_expressions import TYPES, CppExpressions, expressions_of, invariants
from minidynamo.codegen.printers.cpp_folds import BETTER, Fold
from minidynamo.config import config

POINTWISE_BLOCK = 2048  # neighbouring rows that are one item of work
SUM_BLOCK = 2048  # elements of a float sum in vector lanes before they go to a double
COLUMN_SUM_BLOCK = 128  # the same where each column has its own sum


def entry_name(kernel: Kernel) -> str:
    """The symbol of the function that Python calls."""
    return f"kernel_{kernel.name}"


def print_kernels(kernels: Sequence[Kernel]) -> str:
    """The source of a library with one entry point per kernel."""
    lines = Lines("  ", "//")
    lines('#include "vecmath.h"')
    for kernel in kernels:
        lines("")
        _KernelPrinter(kernel, lines).print()
    return lines.text()


@dataclass(frozen=True)
class _Items:
    """The work of a kernel cut into items: one per outer row and block of `block` neighbours of the row `along`."""

    outer: tuple[Var, ...]
    along: Var | None
    block: int

    @property
    def blocks(self) -> int:
        return math.ceil(self.along.extent / self.block) if self.along is not None else 1

    @property
    def count(self) -> int:
        return extent_of(self.outer) * self.blocks


def _items_of(layout: Layout) -> _Items:
    if layout.along is None:
        return _Items(layout.outer, None, 1)
    extent = max(layout.along.extent, 1)
    if layout.form is Form.POINTWISE:
        return _Items(layout.outer, layout.along, min(extent, POINTWISE_BLOCK))
    # Narrow blocks let more threads share few columns, wide ones read memory in longer runs.
    return _Items(layout.outer, layout.along, min(extent, max(64, min(512, extent // 8 // 64 * 64))))


class _KernelPrinter(CppExpressions):
    """Prints one kernel. `names` says how a Ref is read at the current place."""

    def __init__(self, kernel: Kernel, lines: Lines) -> None:
        super().__init__()
        self.kernel = kernel
        self.lines = lines
        self.layout = layout_of(kernel)
        self.items = _items_of(self.layout)
        self.column = self.layout.form is Form.COLUMNS
        self.fails = any(self.may_fail(e) for s in kernel.statements() for e in expressions_of(s))

    # ---- functions ----

    def print(self) -> None:
        kernel, lines = self.kernel, self.lines
        written = {b.name for b in kernel.writes}
        kinds = {b.name: f"{'' if b.name in written else 'const '}{TYPES[b.dtype]}" for b in kernel.arguments}
        parameters = ", ".join(f"{kind}* p_{name}" for name, kind in kinds.items())
        with lines.block(f"static int {kernel.name}_items({parameters}, int64_t begin, int64_t end) {{", "}"):
            if self.fails:
                lines("int failed = 0;")
            with lines.block("for (int64_t item = begin; item < end; item++) {", "}"):
                self.item()
            lines("return failed;" if self.fails else "return 0;")
        with lines.block(f"ENTRY({entry_name(kernel)}) {{", "}"):
            for position, (name, kind) in enumerate(kinds.items()):
                lines(f"auto* p_{name} = address<{kind}>(args[{position}]);")
            self.launch(", ".join(f"p_{name}" for name in kinds))

    def launch(self, arguments: str) -> None:
        kernel, lines, count = self.kernel, self.lines, self.items.count
        if kernel.work < config.min_parallel_elements:
            lines(f"return result({kernel.name}_items({arguments}, 0, {count}));")
            return
        lines("int failed = 0;")
        with lines.block("{", "}"):
            lines("WithoutGil running;")
            with lines.block(
                f"parallel_for({count}, {config.threads if count > 1 else 1}, [&](int64_t begin, int64_t end) {{", "});"
            ):
                lines(f"int code = {kernel.name}_items({arguments}, begin, end);", "if (code) failed = code;")
        lines("return result(failed);")

    def item(self) -> None:
        """One item: the coordinates, then each loop."""
        step = self.items.blocks
        for var in reversed(self.items.outer):
            quotient = "item" if step == 1 else f"item / {step}"
            last = var == self.items.outer[0]
            self.lines(f"const int64_t {var.name} = {quotient if last else f'{quotient} % {max(var.extent, 1)}'};")
            step *= max(var.extent, 1)
        along = self.items.along
        if along is not None and self.items.blocks > 1:
            first = "item" if not self.items.outer else f"item % {self.items.blocks}"
            self.lines(f"const int64_t first = {first} * {self.items.block};")
            self.lines(_end_of_block("after", "first", self.items.block, along.extent))
        for loop in self.kernel.loops:
            ordered = Loop(loop.axes, stores_last(loop.body))
            self.hoist(ordered)
            self.loop(ordered)

    def hoist(self, loop: Loop) -> None:
        """Name what is the same in all iterations of `loop`, so that it is read, checked and computed once."""
        inner = {*loop.axes, *((self.items.along,) if self.items.along is not None else ())}
        named = [s for s in self.kernel.statements() if isinstance(s, (Let, Accumulate))]
        # Columns have an array of every value of a row, kept values an array over the row.
        varying = {s.name for s in named if self.column or (isinstance(s, Let) and s.kept)}
        for e in invariants(loop.body, inner, varying) if extent_of(inner) > 1 else ():
            if e not in self.hoisted:
                name = f"h_{len(self.hoisted)}"
                self.lines(f"const {TYPES[e.dtype]} {name} = {self.expr(e)};")
                self.hoisted[e] = name

    # ---- loops ----

    def loop(self, loop: Loop) -> None:
        if loop.axes:
            self.nest(loop)
        elif self.items.along is None:
            for statement in loop.body:
                self.statement(statement)
        else:
            if self.column:  # values of a row are read by later loops: one per neighbour
                for s in loop.body:
                    if isinstance(s, Let):
                        self.lines(f"{TYPES[s.value.dtype]} v_{s.name}[{self.items.block}];")
            with self.vector_loop(self.items.along, self.first, self.after, loop.body):
                for s in loop.body:
                    if isinstance(s, Let) and self.column:
                        self.lines.origins(s.origins)
                        self.lines(f"v_{s.name}{self.here} = {self.expr(s.value)};")
                        self.names[s.name] = f"v_{s.name}{self.here}"
                    else:
                        self.statement(s)

    @property
    def first(self) -> str:
        return "first" if self.items.blocks > 1 else "0"

    @property
    def after(self) -> str:
        assert self.items.along is not None
        return "after" if self.items.blocks > 1 else str(self.items.along.extent)

    @property
    def here(self) -> str:
        """The element of an array over a block of columns; nothing where a row has its own variables."""
        if not self.column or self.items.along is None:
            return ""
        name = self.items.along.name
        return f"[{name} - first]" if self.items.blocks > 1 else f"[{name}]"

    @contextlib.contextmanager
    def vector_loop(
        self, var: Var, first: str, after: str, body: Sequence[Statement], clauses: str = ""
    ) -> Iterator[None]:
        # A failure is recorded in one variable, and an argmax picks one of two by a condition: not for vector lanes.
        ordered = any(isinstance(s, Accumulate) and s.combine in BETTER for s in body) and not self.column
        if not ordered and not any(self.may_fail(e) for s in body for e in expressions_of(s)):
            self.lines(f"#pragma omp simd{clauses}")
        with self.lines.block(f"for (int64_t {var.name} = {first}; {var.name} < {after}; {var.name}++) {{", "}"):
            yield

    def nest(self, loop: Loop) -> None:
        """A loop with axes: folds start, the axes run, the innermost in vector lanes, folds end."""
        folds = [Fold.of(s, self.sum_block(loop)) for s in loop.body if isinstance(s, Accumulate)]
        for s in loop.body:
            if isinstance(s, Let) and s.kept:
                self.lines(f"alignas(64) {TYPES[s.value.dtype]} k_{s.name}[{extent_of(loop.axes)}];")
        self.each(*(line for fold in folds for line in fold.declarations()), declare=True)
        self.each(*(line for fold in folds for line in fold.start(self.here)))
        *outer, inner = loop.axes
        parted = [fold for fold in folds if fold.parted]
        with contextlib.ExitStack() as stack:
            for var in outer:
                stack.enter_context(self.lines.block(_for(var.name, "0", str(var.extent)), "}"))
            first, after = "0", str(inner.extent)
            block = self.block_of_sums
            if parted and inner.extent > block:
                head = f"for (int64_t from = 0; from < {after}; from += {block}) {{"
                stack.enter_context(self.lines.block(head, "}"))
                self.lines(_end_of_block("to", "from", block, inner.extent))
                first, after = "from", "to"
            self.each(*(f"float {fold.part}" for fold in parted), declare=True)
            self.each(*(f"{fold.part}{self.here} = 0" for fold in parted))
            if self.column:
                assert self.items.along is not None
                with (
                    self.lines.block(_for(inner.name, first, after), "}"),
                    self.vector_loop(self.items.along, self.first, self.after, loop.body),
                ):
                    self.body(loop, folds)
            else:
                clauses = "".join(f" reduction({fold.clause} : {fold.current})" for fold in folds if fold.clause)
                with self.vector_loop(inner, first, after, loop.body, clauses):
                    self.body(loop, folds)
            self.each(*(f"{fold.total}{self.here} += {fold.part}{self.here}" for fold in parted))
        self.end(loop, folds)

    def sum_block(self, loop: Loop) -> int:
        """The number of float additions per lane up to which a sum is left in one float; 0 for none."""
        return 0 if extent_of(loop.axes) <= self.block_of_sums else self.block_of_sums

    @property
    def block_of_sums(self) -> int:
        return COLUMN_SUM_BLOCK if self.column else SUM_BLOCK

    def each(self, *statements: str, declare: bool = False) -> None:
        """Statements once per row: written as they are, or as arrays and loops over a block of columns."""
        if not statements:
            return
        if not self.column:
            self.lines(*(f"{s};" for s in statements))
        elif declare:
            self.lines(*(f"{s}[{self.items.block}];" for s in statements))
        else:
            assert self.items.along is not None
            with self.vector_loop(self.items.along, self.first, self.after, ()):
                self.lines(*(f"{s};" for s in statements))

    def body(self, loop: Loop, folds: Sequence[Fold]) -> None:
        remaining = iter(folds)
        for s in loop.body:
            if isinstance(s, Accumulate):
                self.lines.origins(s.origins)
                position = "" if s.position is None else self.index(s.position)
                self.lines(*next(remaining).step(self.here, self.expr(s.value), position))
                continue
            self.statement(s)
            if isinstance(s, Let) and s.kept:
                self.lines(f"{self.kept(s, loop)} = v_{s.name};")

    def kept(self, s: Let, loop: Loop) -> str:
        place = flatten([as_index(v) for v in loop.axes], row_major([v.extent for v in loop.axes]))
        return f"k_{s.name}[{self.index(place)}]"

    def end(self, loop: Loop, folds: Sequence[Fold]) -> None:
        """Name what later loops read."""
        for s in loop.body:
            if isinstance(s, Let) and s.kept:
                self.names[s.name] = self.kept(s, loop)
        for fold in folds:
            value = fold.value(self.here)
            if self.column:
                self.names[fold.source.name] = value
            else:
                self.lines(f"const auto v_{fold.source.name} = {value};")
                self.names[fold.source.name] = f"v_{fold.source.name}"

    # ---- statements and expressions ----

    def statement(self, s: Statement) -> None:
        self.lines.origins(s.origins)
        match s:
            case Let():
                self.lines(f"const {TYPES[s.value.dtype]} v_{s.name} = {self.expr(s.value)};")
                self.names[s.name] = f"v_{s.name}"
            case Store():
                self.lines(f"p_{s.buffer}[{self.index(s.index)}] = {self.expr(s.value)};")
            case Accumulate():
                raise AssertionError(f"{s.name} is folded over nothing; the verifier lets no such kernel pass")


def _for(name: str, first: str, after: str) -> str:
    return f"for (int64_t {name} = {first}; {name} < {after}; {name}++) {{"


def _end_of_block(name: str, first: str, block: int, extent: int) -> str:
    end = f"{first} + {block}"
    return f"const int64_t {name} = {end if extent % block == 0 else f'{end} < {extent} ? {end} : {extent}'};"
