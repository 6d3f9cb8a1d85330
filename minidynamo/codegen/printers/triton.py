"""Owns the Triton text of kernels: a Python function per kernel, over tiles of rows and columns.

It follows the same schedule as `cpp.py`. A pointwise kernel is one row of blocks; a kernel with loops works on tiles
[ROWS, COLUMNS]: values per row have shape [ROWS, 1], folds run along the second axis. If a row fits into a tile, the
loops become straight-line code.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from minidynamo.codegen.ir.expr import HALF, Cast, Const, Expr, IndexValue, Load, Op, Scalar
from minidynamo.codegen.ir.index import FloorDiv, Index, Mod, Var, as_index, delinearize
from minidynamo.codegen.ir.loops import Accumulate, Kernel, Let, Loop, Statement, Store, indices_in
from minidynamo.codegen.ir.size import hint, known_at_least
from minidynamo.codegen.printers.base import (
    COMMON,
    ExpressionPrinter,
    Form,
    Lines,
    extent_of,
    layout_of,
    library_calls,
    shortest,
    stores_last,
)
from minidynamo.codegen.runtime.triton_launch import POINTERS, LaunchSpec

TYPES = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.int8: "tl.int8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
    torch.uint8: "tl.uint8",
    torch.bool: "tl.int1",
}

OPERATIONS: dict[str, str | Mapping[str, str]] = {
    **COMMON,
    **library_calls("libdevice."),
    "div": "divide({0}, {1})",
    "floordiv": {"f": "floordiv_float({0}, {1})", "i": "floordiv_int({0}, {1})"},
    "truncdiv": {"f": "libdevice.trunc(divide({0}, {1}))", "i": "({0} // {1})"},
    "remainder": {"f": "remainder_float({0}, {1})", "i": "remainder_int({0}, {1})"},
    "fmod": {"f": "libdevice.fmod({0}, {1})", "i": "({0} % {1})"},
    "abs": "tl.abs({0})",
    "sign": "sign({0})",
    "min": {"f": "minimum({0}, {1})", "i": "minimum({0}, {1})", "b": "({0} & {1})"},
    "max": {"f": "maximum({0}, {1})", "i": "maximum({0}, {1})", "b": "({0} | {1})"},
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "round": "libdevice.nearbyint({0})",
    "sqrt": "square_root({0})",
    "rsqrt": "reciprocal(square_root({0}))",
    "reciprocal": "reciprocal({0})",
    "sigmoid": "sigmoid({0})",
    "pow": {"f": "libdevice.pow({0}, {1})", "i": "power_int({0}, {1})"},
    "isinf": '(tl.abs({0}) == float("inf"))',
    "and": "({0} & {1})",
    "or": "({0} | {1})",
    "xor": "({0} ^ {1})",
    "not": {"i": "({0} ^ {ones})", "b": "({0} == 0)"},
    "shl": "shift_left({0}, {1}, {width})",
    "shr": "shift_right({0}, {1}, {width})",
    "where": "tl.where({0}, {1}, {2})",
    **dict.fromkeys(
        ("check_index", "check_data", "check_subscript", "check_target", "check_gather"),
        "check_index({0}, {1}, {mask})",
    ),
}
"""Operation -> text, or a text per kind of operands."""

# With these operators, Triton gives a literal the type of the other operand.
INFIX = frozenset("add sub mul eq ne lt le gt ge".split())  # noqa: SIM905
LITERAL = (torch.float32, torch.int32, torch.int64)

# combine -> fold of two values
FOLDS = {"sum": "{0} + {1}", "prod": "{0} * {1}", "max": "maximum({0}, {1})", "min": "minimum({0}, {1})"}
POSITION_FOLDS = {"argmax": "greater", "argmin": "smaller"}

POINTWISE_BLOCK = 1024
LARGEST_ROW = 16384  # columns of a tile; longer rows are read in pieces, unless a value of the row is kept
TILE = 4096
NARROW_COLUMNS = 64  # rows of a tile that runs across memory
FEWEST_COLUMNS = 128  # columns of a tile if their number is symbolic


def print_kernels(kernels: Sequence[Kernel]) -> str:
    """Returns Python source with a function per kernel. `triton_launch` compiles the source, with its globals."""
    lines = Lines("    ", "#")
    for kernel in kernels:
        lines("", "")
        _KernelPrinter(kernel, lines).print()
    return lines.text().lstrip("\n")


def launch_spec(kernel: Kernel) -> LaunchSpec:
    """Returns the launch parameters of `kernel`, with its tile."""
    layout = layout_of(kernel)
    rows, columns = extent_of(kernel.rows), extent_of(layout.axes)
    wide = _power_of_two(hint(columns))
    if layout.form is Form.POINTWISE:
        row_block, column_block = POINTWISE_BLOCK, 0
    elif layout.form is Form.COLUMNS:
        row_block, column_block = NARROW_COLUMNS, min(wide, TILE // NARROW_COLUMNS)
    else:
        column_block = wide if isinstance(columns, int) else max(FEWEST_COLUMNS, min(wide, TILE))
        if not _keeps(kernel):
            column_block = min(column_block, LARGEST_ROW)
        row_block = max(1, min(TILE // column_block, 64))
    return LaunchSpec(
        name=kernel.name,
        pointers=tuple((f"p_{b.name}", POINTERS[b.dtype]) for b in kernel.arguments),
        rows=rows,
        row_block=min(row_block, _power_of_two(rows)) if column_block and isinstance(rows, int) else row_block,
        column_block=column_block,
        warps=8 if column_block * row_block > TILE else 4,
        checked=any(isinstance(e, Op) and e.name.startswith("check_") for e in _expressions(kernel)),
        numbers=tuple((name, number) for number, name in kernel.parameters.items()),
        device=kernel.device,
    )


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _keeps(kernel: Kernel) -> bool:
    return any(isinstance(s, Let) and s.kept for s in kernel.statements())


def _expressions(kernel: Kernel) -> list[Expr]:
    expressions: list[Expr] = []
    for s in kernel.statements():
        expressions += s.value.below
        if isinstance(s, Store):
            expressions += IndexValue(s.index, torch.int64).below
    return expressions


def _reach(index: Index) -> float:
    """Returns a bound of the absolute value of an index and its parts; infinity if there is none."""
    total = float(abs(index.const)) if isinstance(index.const, int) else math.inf
    inside = 0.0
    for atom, factor in index.terms:
        bounds = as_index(atom).bounds()
        if bounds is None or not all(isinstance(n, int) for n in (*bounds, factor)):
            return math.inf
        total += abs(hint(factor)) * max(abs(hint(n)) for n in bounds)
        inside = max(inside, _reach(atom.base) if isinstance(atom, (FloorDiv, Mod)) else 0.0)
    return max(total, inside)


class _KernelPrinter(ExpressionPrinter):
    """Prints a kernel. All rows are a single variable, `row`, and all columns a single variable, `column`."""

    types = TYPES
    operations = OPERATIONS
    floor_division = "//"

    def __init__(self, kernel: Kernel, lines: Lines) -> None:
        super().__init__()
        self.kernel = kernel
        self.lines = lines
        self.spec = launch_spec(kernel)
        self.axes = layout_of(kernel).axes
        self.row = Var("row", extent_of(kernel.rows))
        self.column = Var("column", extent_of(self.axes))
        self.flat = _flat(self.row, kernel.rows) | _flat(self.column, self.axes)
        self.bits = ".to(tl.int64)" if self.large() else ""  # a cast of the variables, which widens all indices
        self.whole = known_at_least(self.spec.column_block - self.column.extent, 0)  # a row fits in a tile
        self.parameters = kernel.parameters
        self.inside = False  # whether inside a loop over columns
        self.serial = itertools.count()
        self.loaded: dict[Load, str] = {}  # Load -> its variable, while in scope

    def print(self) -> None:
        parameters = [f"p_{b.name}" for b in self.kernel.arguments]
        parameters += [f'{name}: "i64"' for name in self.parameters.values()]
        parameters += [f"{name}: tl.constexpr" for name in self.spec.constants(1)]
        self.lines("@jit")
        with self.lines.block(f"def {self.kernel.name}({', '.join(parameters)}):"):
            program = f"tl.program_id(0){self.bits}"
            tile = "[:, None]" if self.spec.column_block else ""
            for number, name in self.parameters.items():
                bits = f"tl.cast({name}, tl.int64)"
                self.lines(
                    f"{name} = {bits}.to(tl.float64, bitcast=True)"
                    if isinstance(number, Scalar)
                    else f"{name} = {bits}"
                )
            limit = self.size(self.row.extent)
            self.lines(f"row = {program} * ROWS + tl.arange(0, ROWS){tile}", f"row_mask = row < {limit}")
            if self.axes and self.whole:
                self.columns("")
            for loop in self.kernel.loops:
                self.loop(loop)

    def large(self) -> bool:
        """Returns whether a variable, an index or a part of an index may need 64 bits."""
        variables = [as_index(self.row), as_index(self.column)]
        indices = (i for s in self.kernel.statements() for i in indices_in(self.flattened(s)))
        return not all(_reach(i) < 2**31 - POINTWISE_BLOCK for i in itertools.chain(variables, indices))

    def columns(self, start: str) -> None:
        self.lines(
            f"column = {start}tl.arange(0, COLUMNS){self.bits}[None, :]",
            f"column_mask = column < {self.size(self.column.extent)}",
        )
        self.lines("mask = row_mask & column_mask")

    # ---- loops ----

    def loop(self, loop: Loop) -> None:
        body = [self.flattened(s) for s in stores_last(loop.body)]
        self.inside = bool(loop.axes)
        if not loop.axes or self.whole:
            for s in body:
                self.statement(s)
        else:
            folds = [s for s in body if isinstance(s, Accumulate)]
            for s in folds:
                self.start(s)
            with self.lines.block(f"for start in range(0, {self.size(self.column.extent)}, COLUMNS):"):
                self.columns("start + ")
                outside = dict(self.loaded)
                for s in body:
                    self.fold(s) if isinstance(s, Accumulate) else self.statement(s)
                self.loaded = outside
            for s in folds:
                self.finish(s, f"fold_{s.name}", f"position_{s.name}")
        self.inside = False

    def flattened(self, s: Statement) -> Statement:
        """Returns the statement in terms of `row` and `column`."""
        value = s.value.substitute(self.flat)
        match s:
            case Let():
                return replace(s, value=value)
            case Store():
                return replace(s, index=s.index.substitute(self.flat), value=value)
            case Accumulate():
                position = None if s.position is None else s.position.substitute(self.flat)
                return replace(s, value=value, position=position)

    def statement(self, s: Statement) -> None:
        self.lines.origins(s.origins)
        match s:
            case Let():
                self.lines(f"v_{s.name} = {self.expr(s.value)}")
                self.names[s.name] = f"v_{s.name}"
            case Store():
                self.lines(f"tl.store({self.address(s.buffer, s.index)}, {self.expr(s.value)}, {self.mask})")
            case Accumulate():
                value, position_text = self.folded(s)
                self.finish(s, value, position_text)

    def address(self, buffer: str, index: Index) -> str:
        """Returns addresses of the shape of the tile, even if they are equal for all rows or columns."""
        same = [v for v in ((self.row, self.column) if self.inside else (self.row,)) if v not in index.variables()]
        return " + ".join([f"p_{buffer}", self.parenthesized(index), *(f"{v.name} * 0" for v in same)])

    @property
    def mask(self) -> str:
        return "mask" if self.inside else "row_mask"

    # ---- folds ----

    def combine(self, s: Accumulate) -> str:
        """Returns the fold in use: any and all are extremes of 0 and 1."""
        return {"any": "max", "all": "min"}.get(s.combine, s.combine)

    def fold_type(self, s: Accumulate) -> torch.dtype:
        """Returns the type of the fold: bools fold as numbers, half types as float, which is exact for comparisons."""
        if s.dtype is torch.bool:
            return torch.int32
        return torch.float32 if s.dtype in HALF else s.dtype

    def identity(self, s: Accumulate) -> str:
        """Returns the neutral element of the fold."""
        dtype, combine = self.fold_type(s), self.combine(s)
        if combine in ("sum", "prod") or s.dtype is torch.bool:
            value: float = 1 if combine in ("prod", "min") else 0
        elif dtype.is_floating_point:
            value = -math.inf if combine in ("max", "argmax") else math.inf
        else:
            info = torch.iinfo(dtype)
            value = info.min if combine in ("max", "argmax") else info.max
        return self.const(Const(float(value) if dtype.is_floating_point else int(value), dtype))

    def folded(self, s: Accumulate) -> tuple[str, str]:
        """Returns the contribution of a tile: the values, and for positional folds the positions."""
        dtype = self.fold_type(s)
        value = self.expr(s.value) if dtype == s.dtype else self.expr(Cast(s.value, dtype))
        text = f"tl.where(mask, {value}, {self.identity(s)})"
        if s.position is None:
            return text, ""
        return text, f"tl.where(mask, {self.expr(IndexValue(s.position, torch.int64))}, {2**62})"

    def start(self, s: Accumulate) -> None:
        self.lines(f"fold_{s.name} = {self.identity(s).replace('[]', '[ROWS, COLUMNS]')}")
        if s.position is not None:
            self.lines(f"position_{s.name} = tl.full([ROWS, COLUMNS], {2**62}, tl.int64)")

    def fold(self, s: Accumulate) -> None:
        self.lines.origins(s.origins)
        value, position_text = self.folded(s)
        if s.position is None:
            self.lines(f"fold_{s.name} = {FOLDS[self.combine(s)].format(f'fold_{s.name}', value)}")
        else:
            both = f"fold_{s.name}, position_{s.name}"
            self.lines(f"{both} = {POSITION_FOLDS[s.combine]}({both}, {value}, {position_text})")

    def finish(self, s: Accumulate, value: str, position_text: str) -> None:
        if s.position is not None:
            text = f"row_{s.combine}({value}, {position_text})"
        else:
            text = f"row_{self.combine(s)}({value})"
            if s.dtype is torch.bool:
                text = f"({text} != 0)"
            elif self.fold_type(s) != s.dtype:
                text = f"{text}.to({TYPES[s.dtype]})"
        self.lines(f"v_{s.name} = {text}")
        self.names[s.name] = f"v_{s.name}"

    # ---- expressions ----

    def operation(self, e: Op) -> str:
        constants = [isinstance(a, Const) for a in e.args]
        literal = e.name in INFIX and sum(constants) == 1 and e.args[0].dtype in LITERAL
        operands = [self.literal(a) if literal and isinstance(a, Const) else self.expr(a) for a in e.args]
        text = self.pattern(e)
        width = 8 * e.args[0].dtype.itemsize
        ones = f"tl.full([], {2**width - 1 if e.dtype is torch.uint8 else -1}, {TYPES[e.dtype]})"
        return text.format(*operands, type=TYPES[e.dtype], width=width, ones=ones, mask=self.mask)

    def literal(self, e: Const) -> str:
        if not e.dtype.is_floating_point:
            return str(int(e.value))
        return shortest(e.value, e.dtype) if math.isfinite(e.value) else f'float("{e.value}")'

    def const(self, e: Const) -> str:
        text = str(e.value) if e.dtype is torch.bool else self.literal(e)
        return f"tl.full([], {text}, {TYPES[e.dtype]})"

    def load(self, e: Load) -> str:
        if e not in self.loaded:
            name = f"{e.buffer}_{next(self.serial)}"
            self.lines(f"{name} = {self.read(e)}")
            self.loaded[e] = name
        return self.loaded[e]

    def read(self, e: Load) -> str:
        index = e.index[0]
        if e.valid is not None:
            return f"tl.load({self.address(e.buffer, index)}, {self.mask} & {self.expr(e.valid)}, 0)"
        # Without columns, even a value that all columns share must not be read.
        if self.inside and not known_at_least(self.column.extent, 1):
            return f"tl.load({self.address(e.buffer, index)}, mask)"
        masks = {self.row: "row_mask", self.column: "column_mask"}
        needed = [mask for var, mask in masks.items() if var in index.variables()]
        position_text = f"p_{e.buffer} + {self.parenthesized(index)}" if index != Index() else f"p_{e.buffer}"
        mask = "mask" if len(needed) == 2 else needed[0] if needed else ""
        return f"tl.load({position_text}, {mask})" if mask else f"tl.load({position_text})"

    def cast(self, e: Cast) -> str:
        value = self.expr(e.value)
        if e.dtype is torch.bool:
            # The interpreter stores bfloat16 as bits, and the bits of -0.0 are not zero.
            return f"(from_bfloat16({value}) != 0)" if e.value.dtype is torch.bfloat16 else f"({value} != 0)"
        if e.dtype is torch.bfloat16 and e.value.dtype is not torch.float32:
            value = self.expr(Cast(e.value, torch.float32))
        if torch.bfloat16 in (e.dtype, e.value.dtype):
            text = f"to_bfloat16({value})" if e.dtype is torch.bfloat16 else f"from_bfloat16({value})"
            return text if e.dtype in (torch.bfloat16, torch.float32) else f"{text}.to({TYPES[e.dtype]})"
        return f"{value}.to({TYPES[e.dtype]})"

    def index_value(self, e: IndexValue) -> str:
        if not e.index.terms and isinstance(e.index.const, int):
            return self.const(Const(float(e.index.const) if e.dtype.is_floating_point else e.index.const, e.dtype))
        return f"{self.parenthesized(e.index)}.to({TYPES[e.dtype]})"


def _flat(flat: Var, axes: Sequence[Var]) -> dict[Var, Index]:
    """Returns each of `axes` in terms of a single variable over all axes."""
    return dict(zip(axes, delinearize(as_index(flat), [v.extent for v in axes])))
