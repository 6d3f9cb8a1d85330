"""Owns the C++ text of kernels: a translation unit for all kernels of a graph.

The scheduler has decided the computation; `runtime/include/vecmath.h` has the approximations of functions. A kernel
becomes a function over a range of items (rows, or blocks of neighbouring rows), which threads share, and an entry point
for Python.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator, Sequence

from minidynamo.codegen.ir.expr import Scalar
from minidynamo.codegen.ir.index import Var, as_index, at_least_one, flatten, row_major
from minidynamo.codegen.ir.loops import Accumulate, Kernel, Let, Loop, Statement, Store
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
    COMPARISONS,
    STORED,
    TYPES,
    CppExpressions,
    Fold,
    expressions_of,
    invariants,
    read,
    reads_across,
    stored,
)
from minidynamo.config import config
from minidynamo.core.records import record

POINTWISE_BLOCK = 2048  # neighbouring rows per item of work
SHORT_SUM = 64  # longest float sum that runs in double from the start
SUM_BLOCK = 2048  # elements of a float sum that vector lanes add in float before adding to a double
COLUMN_SUM_BLOCK = 128  # the same for sums of columns
READ_AHEAD = 2048  # the longest block whose reads across memory run before its vector loop
BLOCKS = Symbol("blocks", 0)  # the number of blocks, if only the kernel knows it


def entry_name(kernel: Kernel) -> str:
    """Returns the symbol of the function that Python calls."""
    return f"kernel_{kernel.name}"


def print_kernels(kernels: Sequence[Kernel]) -> str:
    """Returns the source of a library with an entry point per kernel. Several kernels can be compiled at once, in the
    parts of launch.h."""
    lines = Lines("  ", "//")
    lines('#include "vecmath.h"')
    for position, kernel in enumerate(kernels):
        lines("")
        if len(kernels) > 1:
            lines(f"#if IN_PART({position})")
        _KernelPrinter(kernel, lines).print()
        if len(kernels) > 1:
            lines("#endif")
    return lines.text()


@record(frozen=True)
class _Items:
    """The work of a kernel, cut into items: an item per point of `outer` and block of `along`."""

    #: The row variables, without `along`.
    outer: tuple[Var, ...]
    #: The row variable that is cut into blocks; None if no row variable runs along memory.
    along: Var | None
    #: The number of rows in a block.
    block: int

    @property
    def blocks(self) -> Extent:
        if self.along is None:
            return 1
        extent = self.along.extent
        return ceil_division(extent, self.block) if isinstance(extent, int) else size_of(BLOCKS)

    @property
    def is_cut(self) -> bool:
        """Returns whether there may be several blocks."""
        return self.blocks not in (0, 1)

    @property
    def count(self) -> Extent:
        return extent_of(self.outer) * self.blocks


def _items_of(layout: Layout) -> _Items:
    if layout.along is None:
        return _Items(layout.outer, None, 1)
    extent = max(hint(layout.along.extent), 1)
    # Narrow blocks let more threads share few columns; wide blocks read memory in longer runs.
    column_block = max(64, min(512, extent // 8 // 64 * 64))
    block = POINTWISE_BLOCK if layout.form is Form.POINTWISE else column_block
    return _Items(layout.outer, layout.along, min(extent, block) if isinstance(layout.along.extent, int) else block)


class _KernelPrinter(CppExpressions):
    """Prints a kernel. `names` maps a Ref to its text at the present position."""

    def __init__(self, kernel: Kernel, lines: Lines) -> None:
        super().__init__()
        self.kernel = kernel
        self.lines = lines
        self.layout = layout_of(kernel)
        self.items = _items_of(self.layout)
        self.column = self.layout.form is Form.COLUMNS
        self.parameters = {**kernel.parameters, BLOCKS: "blocks"}
        self.serial = itertools.count()  # serial numbers of arrays, which differ between sibling loops
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
        result_type = "Failure" if self.fails else "void"
        with lines.block(f"static {result_type} {kernel.name}_items({parameters}, int64_t begin, int64_t end) {{", "}"):
            self.count_blocks()
            if self.fails:
                lines("Failure failed = {};")
            with lines.block("for (int64_t item = begin; item < end; item++) {", "}"):
                self.item()
            if self.fails:
                lines("return failed;")
        with lines.block(f"ENTRY({entry_name(kernel)}) {{", "}"):
            for position, (name, kind) in enumerate(kinds.items()):
                lines(f"auto* p_{name} = memory<{kind}>(args[{position}]);")
            for position, (name, kind) in enumerate(numbers.items(), len(kinds)):
                lines(f"const {kind} {name} = {'real' if kind == 'double' else 'integer'}(args[{position}]);")
            lines("if (PyErr_Occurred()) return nullptr;")
            self.count_blocks()
            self.launch(", ".join([*(f"p_{name}" for name in kinds), *numbers]))

    def count_blocks(self) -> None:
        """Prints the computation of the number of blocks, if it depends on symbolic sizes."""
        along, block = self.items.along, self.items.block
        if along is not None and not isinstance(along.extent, int):
            self.lines(f"const int64_t blocks = ({self.size(along.extent)} + {block - 1}) / {block};")

    def launch(self, arguments: str) -> None:
        kernel, lines, count = self.kernel, self.lines, self.size(self.items.count)
        serial_call = f"{kernel.name}_items({arguments}, 0, {count})"
        serial_call = f"return result({serial_call});" if self.fails else f"return {serial_call}, none();"
        if not isinstance(kernel.work, int):
            lines(f"if ({self.size(kernel.work)} < {config.min_parallel_elements}) {serial_call}")
        elif kernel.work < config.min_parallel_elements:
            lines(serial_call)
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
        """Prints an item: its coordinates, then each loop."""
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
        """Names the expressions that are equal in all iterations of `loop`, to read, check and compute them once."""
        inner = {*loop.axes, *((self.items.along,) if self.items.along is not None else ())}
        named = [s for s in self.kernel.statements() if isinstance(s, (Let, Accumulate))]
        # In columns, each value of a row is an array; kept values are arrays over the row.
        varying = {s.name for s in named if self.column or (isinstance(s, Let) and s.kept)}
        for e in invariants(loop.body, inner, varying) if self.repeats(inner) else ():
            if e not in self.hoisted:
                name = f"h_{len(self.hoisted)}"
                self.lines(f"const {TYPES[e.dtype]} {name} = {self.expr(e)};")
                self.hoisted[e] = name

    def repeats(self, axes: Collection[Var]) -> bool:
        """Returns whether a loop is known to run more than once. Hoisted reads are safe only if the loop runs:
        otherwise there may be no element to read."""
        total = extent_of(axes)
        return total > 1 if isinstance(total, int) else known_at_least(total, 1)

    def end_of_block(self, name: str, first: str, block: int, extent: Extent) -> str:
        end, has_whole_blocks = f"{first} + {block}", isinstance(extent, int) and extent % block == 0
        limit = self.size(extent)
        return f"const int64_t {name} = {end if has_whole_blocks else f'{end} < {limit} ? {end} : {limit}'};"

    # ---- loops ----

    def loop(self, loop: Loop) -> None:
        if loop.axes:
            self.nest(loop)
        elif self.items.along is None:
            for statement in loop.body:
                self.statement(statement)
        else:
            if self.column:  # later loops read the values of a row: an element per neighbour
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
        """Returns the subscript of the present column in an array over a block; "" if a row has scalar variables."""
        if not self.column or self.items.along is None:
            return ""
        name = self.items.along.name
        return f"[{name} - first]" if self.items.is_cut else f"[{name}]"

    @contextlib.contextmanager
    def vector_loop(
        self, var: Var, first: str, after: str, body: Sequence[Statement], block: Extent = 0, clauses: str = ""
    ) -> Iterator[None]:
        """Prints a loop over at most `block` values (0: unknown), in vector lanes if possible."""
        # Not in vector lanes: a failure is recorded in a single variable, and an argmax selects by a condition.
        is_ordered = any(isinstance(s, Accumulate) and s.combine in COMPARISONS for s in body) and not self.column
        in_lanes = not is_ordered and not any(self.may_fail(e) for s in body for e in expressions_of(s))
        hoisted_outside = dict(self.hoisted)
        if in_lanes:
            if isinstance(block, int) and 0 < block <= READ_AHEAD:
                self.read_ahead(var, first, after, body, block)
            self.lines(f"#pragma omp simd{clauses}")
        with self.lines.block(_for(var.name, first, after), "}"):
            yield
        self.hoisted = hoisted_outside

    def read_ahead(self, var: Var, first: str, after: str, body: Sequence[Statement], block: int) -> None:
        """Prints a separate loop for reads across memory, if the body makes choices.

        GCC would move such a read into the branch that needs it, and then would not vectorize the loop.
        """
        offset = var.name if first == "0" else f"{var.name} - {first}"
        for e in reads_across(body, var):
            if e not in self.hoisted:
                name = f"r_{next(self.serial)}"
                self.lines(f"{STORED[e.dtype]} {name}[{block}];")
                with self.lines.block(_for(var.name, first, after), "}"):
                    self.lines(f"{name}[{offset}] = p_{e.buffer}[{self.index(e.index[0])}];")
                self.hoisted[e] = read(f"{name}[{offset}]", e.dtype)

    def nest(self, loop: Loop) -> None:
        """Prints a loop with axes: starts the folds, runs the axes, the innermost in vector lanes, and ends the
        folds."""
        is_short = not self.column and known_at_least(SHORT_SUM - extent_of(loop.axes), 0)
        folds = Fold.all_of(loop.body, loop.axes, self.sum_block(loop), is_short)
        for s in loop.body:
            if isinstance(s, Let) and s.kept:
                self.lines(f"alignas(64) {STORED[s.value.dtype]} k_{s.name}[{self.size(extent_of(loop.axes))}];")
        self.each(*(line for fold in folds for line in fold.declarations()), declare=True)
        self.each(*(line for fold in folds for line in fold.start(self.here)))
        *outer, inner = loop.axes
        blocked = [fold for fold in folds if fold.is_blocked]
        with contextlib.ExitStack() as stack:
            for var in outer:
                stack.enter_context(self.lines.block(_for(var.name, "0", self.size(var.extent)), "}"))
            first, after = "0", self.size(inner.extent)
            block = self.block_of_sums
            if blocked and not known_at_least(block - inner.extent, 0):
                head = f"for (int64_t from = 0; from < {after}; from += {block}) {{"
                stack.enter_context(self.lines.block(head, "}"))
                self.lines(self.end_of_block("to", "from", block, inner.extent))
                first, after = "from", "to"
            self.each(*(f"float {fold.part}" for fold in blocked), declare=True)
            self.each(*(f"{fold.part}{self.here} = 0" for fold in blocked))
            if self.column:
                assert self.items.along is not None
                with (
                    self.lines.block(_for(inner.name, first, after), "}"),
                    self.vector_loop(self.items.along, self.first, self.after, loop.body, self.items.block),
                ):
                    self.body(loop, folds)
            else:
                clauses = "".join(f" reduction({fold.clause} : {fold.current})" for fold in folds if fold.clause)
                longest = inner.extent if first == "0" else block
                with self.vector_loop(inner, first, after, loop.body, longest, clauses):
                    self.body(loop, folds)
            self.each(*(f"{fold.total}{self.here} += {fold.part}{self.here}" for fold in blocked))
        self.end(loop, folds)

    def sum_block(self, loop: Loop) -> int:
        """Returns the number of float additions per lane after which a sum moves to a double; 0: never."""
        return 0 if known_at_least(self.block_of_sums - extent_of(loop.axes), 0) else self.block_of_sums

    @property
    def block_of_sums(self) -> int:
        return COLUMN_SUM_BLOCK if self.column else SUM_BLOCK

    def each(self, *statements: str, declare: bool = False) -> None:
        """Prints statements once per row: unchanged, or as arrays and loops over a block of columns."""
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
        """Prints the statements of an iteration."""
        remaining = iter(folds)
        for s in loop.body:
            if isinstance(s, Accumulate):
                self.lines.origins(s.origins)
                position = "" if s.position is None else self.index(s.position)
                self.lines(*next(remaining).step(self.here, self.expr(s.value), position))
                continue
            self.statement(s)
            if isinstance(s, Let) and s.kept:
                self.lines(f"{self.kept(s, loop)} = {stored(f'v_{s.name}', s.value.dtype)};")

    def kept(self, s: Let, loop: Loop) -> str:
        offset = flatten([as_index(v) for v in loop.axes], row_major([v.extent for v in loop.axes]))
        return f"k_{s.name}[{self.index(offset)}]"

    def end(self, loop: Loop, folds: Sequence[Fold]) -> None:
        """Names the values that later loops read."""
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
                raise AssertionError(f"{s.name} is folded outside a loop; the verifier rejects such a kernel")


def _for(name: str, first: str, after: str) -> str:
    return f"for (int64_t {name} = {first}; {name} < {after}; {name}++) {{"
