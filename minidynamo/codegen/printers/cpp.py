"""Owns the spelling of kernels in C++: one translation unit for all kernels of a graph.

What is computed was decided by the scheduler; how a function is approximated stands in `runtime/include/vecmath.h`.
A kernel becomes a function over a range of items (rows, or blocks of neighbouring rows), which threads share, and an
entry point for Python.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from minidynamo.codegen.ir.expr import Load, Ref, Scalar
from minidynamo.codegen.ir.index import Index, Var, as_index, at_least_one, flatten, row_major
from minidynamo.codegen.ir.loops import MOMENTS, Accumulate, Kernel, Let, Loop, Statement, Store
from minidynamo.codegen.ir.size import Extent, Symbol, ceil_division, hint, known_at_least, size_of
from minidynamo.codegen.printers.base import (
    Form,
    Layout,
    Lines,
    extent_of,
    layout_of,
    stores_last,
)
from minidynamo.codegen.printers.cpp_expressions import (
    STORED,
    TYPES,
    CppExpressions,
    expressions_of,
    invariants,
    read,
    reads_across,
    stored,
)
from minidynamo.codegen.printers.cpp_folds import BETTER, Fold
from minidynamo.config import config

POINTWISE_BLOCK = 2048  # neighbouring rows that are one item of work
SHORT_SUM = 64  # elements of a float sum that are added in double from the first on
SUM_BLOCK = 2048  # elements of a float sum in vector lanes before they go to a double
COLUMN_SUM_BLOCK = 128  # the same where each column has its own sum
MOMENTS_BLOCK = 1024  # elements of a row that moments take at once; chunks of all types fit into it
READ_AHEAD = 2048  # elements of a block that are read in front of its vector lanes
BLOCKS = Symbol("blocks", 0)  # what the number of blocks is called where only the kernel knows it


def entry_name(kernel: Kernel) -> str:
    """The symbol of the function that Python calls."""
    return f"kernel_{kernel.name}"


def print_kernels(kernels: Sequence[Kernel]) -> str:
    """The source of a library with one entry point per kernel."""
    lines = Lines("  ", "//")
    lines('#include "vecmath.h"')
    folds = (s for kernel in kernels for s in kernel.statements() if isinstance(s, Accumulate))
    if any(s.combine in MOMENTS for s in folds):
        lines('#include "moments.h"')
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
    def blocks(self) -> Extent:
        if self.along is None:
            return 1
        extent = self.along.extent
        return ceil_division(extent, self.block) if isinstance(extent, int) else size_of(BLOCKS)

    @property
    def is_cut(self) -> bool:
        """Whether there may be several blocks."""
        return self.blocks not in (0, 1)

    @property
    def count(self) -> Extent:
        return extent_of(self.outer) * self.blocks


def _items_of(layout: Layout) -> _Items:
    if layout.along is None:
        return _Items(layout.outer, None, 1)
    extent = max(hint(layout.along.extent), 1)
    # Narrow blocks let more threads share few columns, wide ones read memory in longer runs.
    wide = max(64, min(512, extent // 8 // 64 * 64))
    block = POINTWISE_BLOCK if layout.form is Form.POINTWISE else wide
    return _Items(layout.outer, layout.along, min(extent, block) if isinstance(layout.along.extent, int) else block)


class _KernelPrinter(CppExpressions):
    """Prints one kernel. `names` says how a Ref is read at the current place."""

    def __init__(self, kernel: Kernel, lines: Lines) -> None:
        super().__init__()
        self.kernel = kernel
        self.lines = lines
        self.layout = layout_of(kernel)
        self.items = _items_of(self.layout)
        self.column = self.layout.form is Form.COLUMNS
        self.parameters = {**kernel.parameters, BLOCKS: "blocks"}
        self.read_before = itertools.count()  # arrays of a kernel, of which loops side by side have some each
        self.fails = any(self.may_fail(e) for s in kernel.statements() for e in expressions_of(s))

    # ---- functions ----

    def print(self) -> None:
        kernel, lines = self.kernel, self.lines
        written = {b.name for b in kernel.writes}
        kinds = {b.name: f"{'' if b.name in written else 'const '}{STORED[b.dtype]}" for b in kernel.arguments}
        numbers = {
            name: TYPES[number.dtype] if isinstance(number, Scalar) else "int64_t"
            for number, name in kernel.parameters.items()
        }
        parameters = ", ".join(
            [
                *(f"{kind}* p_{name}" for name, kind in kinds.items()),
                *(f"{kind} {name}" for name, kind in numbers.items()),
            ]
        )
        made = "Failure" if self.fails else "void"
        with lines.block(f"static {made} {kernel.name}_items({parameters}, int64_t begin, int64_t end) {{", "}"):
            self.count_blocks()
            if self.fails:
                lines("Failure failed = {};")
            with lines.block("for (int64_t item = begin; item < end; item++) {", "}"):
                self.item()
            if self.fails:
                lines("return failed;")
        with lines.block(f"ENTRY({entry_name(kernel)}) {{", "}"):
            for position, (name, kind) in enumerate(kinds.items()):
                lines(f"auto* p_{name} = address<{kind}>(args[{position}]);")
            for position, (name, kind) in enumerate(numbers.items(), len(kinds)):
                lines(f"const {kind} {name} = {'real' if kind == 'double' else 'integer'}(args[{position}]);")
            self.count_blocks()
            self.launch(", ".join([*(f"p_{name}" for name in kinds), *numbers]))

    def count_blocks(self) -> None:
        """Compute the number of blocks where it is not known."""
        along, block = self.items.along, self.items.block
        if along is not None and not isinstance(along.extent, int):
            self.lines(f"const int64_t blocks = ({self.size(along.extent)} + {block - 1}) / {block};")

    def launch(self, arguments: str) -> None:
        kernel, lines, count = self.kernel, self.lines, self.size(self.items.count)
        alone = f"{kernel.name}_items({arguments}, 0, {count})"
        alone = f"return result({alone});" if self.fails else f"return {alone}, none();"
        if not isinstance(kernel.work, int):
            lines(f"if ({self.size(kernel.work)} < {config.min_parallel_elements}) {alone}")
        elif kernel.work < config.min_parallel_elements:
            lines(alone)
            return
        threads = 1 if self.items.count in (0, 1) else config.threads
        if self.fails:
            lines("Failure failed = {};", "bool is_known = false;")
        with lines.block("{", "}"):
            lines("WithoutGil running;")
            with lines.block(
                f"parallel_for({count}, {threads}, [&](int64_t begin, int64_t end) {{",
                "});",
            ):
                call = f"{kernel.name}_items({arguments}, begin, end);"
                lines(f"Failure own = {call}" if self.fails else call)
                if self.fails:
                    lines("if (own.reason && !__atomic_test_and_set(&is_known, __ATOMIC_RELAXED)) failed = own;")
        lines("return result(failed);" if self.fails else "return none();")

    def item(self) -> None:
        """One item: the coordinates, then each loop."""
        step: Extent = self.items.blocks
        for var in reversed(self.items.outer):
            quotient = "item" if step == 1 else f"item / {self.factor(step)}"
            size = at_least_one(var.extent)
            last = var == self.items.outer[0]
            self.lines(f"const int64_t {var.name} = {quotient if last else f'{quotient} % {self.factor(size)}'};")
            step = step * size
        along = self.items.along
        if along is not None and self.items.is_cut:
            first = "item" if not self.items.outer else f"item % {self.factor(self.items.blocks)}"
            self.lines(f"const int64_t first = {first} * {self.items.block};")
            self.lines(self.end_of_block("after", "first", self.items.block, along.extent))
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
        for e in invariants(loop.body, inner, varying) if self.repeats(inner) else ():
            if e not in self.hoisted:
                name = f"h_{len(self.hoisted)}"
                self.lines(f"const {TYPES[e.dtype]} {name} = {self.expr(e)};")
                self.hoisted[e] = name

    def repeats(self, axes: Collection[Var]) -> bool:
        """Whether a loop runs more than once, as far as that is known. What it reads is read in front of it only where
        it runs at all: otherwise there may be nothing to read."""
        total = extent_of(axes)
        return total > 1 if isinstance(total, int) else known_at_least(total, 1)

    def end_of_block(self, name: str, first: str, block: int, extent: Extent) -> str:
        end, whole = f"{first} + {block}", isinstance(extent, int) and extent % block == 0
        limit = self.size(extent)
        return f"const int64_t {name} = {end if whole else f'{end} < {limit} ? {end} : {limit}'};"

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
                        self.lines(f"{STORED[s.value.dtype]} v_{s.name}[{self.items.block}];")
            with self.vector_loop(self.items.along, self.first, self.after, loop.body, self.items.block):
                for s in loop.body:
                    if isinstance(s, Let) and self.column:
                        self.lines.origins(s.origins)
                        element = f"v_{s.name}{self.here}"
                        self.lines(f"{element} = {stored(self.expr(s.value), s.value.dtype)};")
                        self.names[s.name] = read(element, s.value.dtype)
                    else:
                        self.statement(s)

    @property
    def first(self) -> str:
        return "first" if self.items.is_cut else "0"

    @property
    def after(self) -> str:
        assert self.items.along is not None
        return "after" if self.items.is_cut else self.size(self.items.along.extent)

    @property
    def here(self) -> str:
        """The element of an array over a block of columns; nothing where a row has its own variables."""
        if not self.column or self.items.along is None:
            return ""
        name = self.items.along.name
        return f"[{name} - first]" if self.items.is_cut else f"[{name}]"

    @contextlib.contextmanager
    def vector_loop(
        self, var: Var, first: str, after: str, body: Sequence[Statement], block: Extent = 0, clauses: str = ""
    ) -> Iterator[None]:
        """A loop over at most `block` values, or 0, if that is not known."""
        # A failure is recorded in one variable, and an argmax picks one of two by a condition: not for vector lanes.
        ordered = any(isinstance(s, Accumulate) and s.combine in BETTER for s in body) and not self.column
        in_lanes = not ordered and not any(self.may_fail(e) for s in body for e in expressions_of(s))
        before = dict(self.hoisted)
        if in_lanes:
            if isinstance(block, int) and 0 < block <= READ_AHEAD:
                self.read_ahead(var, first, after, body, block)
            self.lines(f"#pragma omp simd{clauses}")
        with self.lines.block(_for(var.name, first, after), "}"):
            yield
        self.hoisted = before

    def read_ahead(self, var: Var, first: str, after: str, body: Sequence[Statement], block: int) -> None:
        """Read what lies across memory in a loop of its own, where the body makes choices: GCC would leave such a read
        to the branch that needs it, and make no vectors of the loop."""
        place = var.name if first == "0" else f"{var.name} - {first}"
        for e in reads_across(body, var):
            if e not in self.hoisted:
                name = f"r_{next(self.read_before)}"
                self.lines(f"{STORED[e.dtype]} {name}[{block}];")
                with self.lines.block(_for(var.name, first, after), "}"):
                    self.lines(f"{name}[{place}] = p_{e.buffer}[{self.index(e.index[0])}];")
                self.hoisted[e] = read(f"{name}[{place}]", e.dtype)

    def nest(self, loop: Loop) -> None:
        """A loop with axes: folds start, the axes run, the innermost in vector lanes, folds end."""
        short = not self.column and known_at_least(SHORT_SUM - extent_of(loop.axes), 0)
        folds = Fold.all_of(loop.body, loop.axes, self.sum_block(loop), short)
        rows = [fold for fold in folds if fold.leads]
        if rows and (places := self.rows_in_memory(loop, folds)):
            size = self.size(extent_of(loop.axes))
            for fold, place in zip(rows, places):
                self.lines(f"{fold.moments(size)};", f"{fold.total}.add({place}, {size});", f"{fold.total}.end();")
            self.end(loop, folds)
            return
        for s in loop.body:
            if isinstance(s, Let) and s.kept:
                self.lines(f"alignas(64) {STORED[s.value.dtype]} k_{s.name}[{self.size(extent_of(loop.axes))}];")
        self.each(*(line for fold in folds for line in fold.declarations()), declare=True)
        self.each(*(line for fold in folds for line in fold.start(self.here)))
        *outer, inner = loop.axes
        parted = [fold for fold in folds if fold.parted]
        self.lines(*(f"{f.moments(self.size(inner.extent))};" for f in rows))
        self.lines(*(f"alignas(64) {f.compared} {f.part}[{MOMENTS_BLOCK}];" for f in rows))
        with contextlib.ExitStack() as stack:
            for var in outer:
                stack.enter_context(self.lines.block(_for(var.name, "0", self.size(var.extent)), "}"))
            first, after = "0", self.size(inner.extent)
            block = MOMENTS_BLOCK if rows else self.block_of_sums
            if (parted or rows) and not known_at_least(block - inner.extent, 0):
                head = f"for (int64_t from = 0; from < {after}; from += {block}) {{"
                stack.enter_context(self.lines.block(head, "}"))
                self.lines(self.end_of_block("to", "from", block, inner.extent))
                first, after = "from", "to"
            self.each(*(f"float {fold.part}" for fold in parted), declare=True)
            self.each(*(f"{fold.part}{self.here} = 0" for fold in parted))
            if self.column:
                assert self.items.along is not None
                with (
                    self.lines.block(_for(inner.name, first, after), "}"),
                    self.vector_loop(self.items.along, self.first, self.after, loop.body, self.items.block),
                ):
                    self.body(loop, folds)
            else:
                clauses = "".join(f" reduction({fold.clause} : {fold.current})" for fold in folds if fold.clause)
                most = inner.extent if first == "0" else block
                with self.vector_loop(inner, first, after, loop.body, most, clauses):
                    self.body(loop, folds, inner.name if first == "0" else f"{inner.name} - {first}")
            self.each(*(f"{fold.total}{self.here} += {fold.part}{self.here}" for fold in parted))
            self.lines(*(f"{fold.total}.add({fold.part}, {after} - {first});" for fold in rows))
        self.lines(*(f"{fold.total}.end();" for fold in rows))
        self.end(loop, folds)

    def rows_in_memory(self, loop: Loop, folds: Sequence[Fold]) -> list[str]:
        """Where the rows lie whose moments are all that a loop computes; nothing where it computes something else."""
        named = {s.name: s.value for s in loop.body if isinstance(s, Let) and not s.kept}
        if len(named) + len(folds) < len(loop.body) or not all(fold.is_moment for fold in folds):
            return []
        start = {v: Index() for v in loop.axes}
        places = []
        for fold in (fold for fold in folds if fold.leads):
            value = fold.source.value
            value = named.get(value.name, value) if isinstance(value, Ref) else value
            if not isinstance(value, Load) or value.valid is not None or value.dtype.itemsize < 4:
                return []
            first = value.index[0].substitute(start)
            if value.index[0] != first + as_index(loop.axes[-1]) or self.may_fail(value):
                return []
            places.append(f"p_{value.buffer} + {self.index(first)}")
        return places

    def sum_block(self, loop: Loop) -> int:
        """The number of float additions per lane up to which a sum is left in one float; 0 for none."""
        return 0 if known_at_least(self.block_of_sums - extent_of(loop.axes), 0) else self.block_of_sums

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

    def body(self, loop: Loop, folds: Sequence[Fold], in_block: str = "") -> None:
        """What a loop does in each iteration, which is at the place `in_block` of a block of a row."""
        remaining = iter(folds)
        for s in loop.body:
            if isinstance(s, Accumulate):
                self.lines.origins(s.origins)
                position = in_block if s.position is None else self.index(s.position)
                self.lines(*next(remaining).step(self.here, self.expr(s.value), position))
                continue
            self.statement(s)
            if isinstance(s, Let) and s.kept:
                self.lines(f"{self.kept(s, loop)} = {stored(f'v_{s.name}', s.value.dtype)};")

    def kept(self, s: Let, loop: Loop) -> str:
        place = flatten([as_index(v) for v in loop.axes], row_major([v.extent for v in loop.axes]))
        return f"k_{s.name}[{self.index(place)}]"

    def end(self, loop: Loop, folds: Sequence[Fold]) -> None:
        """Name what later loops read."""
        for s in loop.body:
            if isinstance(s, Let) and s.kept:
                self.names[s.name] = read(self.kept(s, loop), s.value.dtype)
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
                self.lines(f"p_{s.buffer}[{self.index(s.index)}] = {stored(self.expr(s.value), s.value.dtype)};")
            case Accumulate():
                raise AssertionError(f"{s.name} is folded over nothing; the verifier lets no such kernel pass")


def _for(name: str, first: str, after: str) -> str:
    return f"for (int64_t {name} = {first}; {name} < {after}; {name}++) {{"
