"""Owns the common part of all kernel printers: lines of text, the walk over expressions, and the form of a kernel's
loops.

No decision about a target here. A printer has a table of operations, a table of types, a few spellings, and a function
that lays out the loops.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum

import torch

from minidynamo.codegen.ir.expr import OPS, Cast, Const, Expr, IndexValue, Load, Op, Ref, Scalar, kind_of
from minidynamo.codegen.ir.index import FloorDiv, Index, Lookup, Mod, Var
from minidynamo.codegen.ir.loops import Kernel, Let, Origins, Statement, Store, comments
from minidynamo.codegen.ir.size import Extent, Number, is_negative, parenthesized, product, spell
from minidynamo.core.records import record

COMMON = {
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "neg": "(-{0})",
    "isnan": "({0} != {0})",
    "eq": "({0} == {1})",
    "ne": "({0} != {1})",
    "lt": "({0} < {1})",
    "le": "({0} <= {1})",
    "gt": "({0} > {1})",
    "ge": "({0} >= {1})",
}
"""Operations with the same text on all targets; rows for an `ExpressionPrinter`'s table."""

LIBRARY = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "lgamma", "trunc", "atan2", "hypot", "copysign", "fma",
)  # fmt: skip
"""Operations that all targets have as a function with C's name, perhaps after a prefix."""


def library_calls(prefix: str) -> dict[str, str]:
    """Returns the rows for LIBRARY, for functions with names that start with `prefix`."""
    operands = {name: ", ".join(f"{{{k}}}" for k in range(OPS[name].arity)) for name in LIBRARY}
    return {name: f"{prefix}{name}({text})" for name, text in operands.items()}


class Lines:
    """Collects lines of text with indentation. `comment` starts a comment."""

    def __init__(self, indent: str, comment: str) -> None:
        self._indent = indent
        self._comment = comment
        self._last_comments: tuple[str, ...] = ()
        self._depth = 0
        self._lines: list[str] = []

    def __call__(self, *lines: str) -> None:
        """Appends lines at the current depth."""
        self._lines += [self._indent * self._depth + line if line else "" for line in lines]

    def origins(self, origins: Origins) -> None:
        """Writes the user's lines as comments, unless the last comments are equal."""
        texts = comments(origins)
        if texts and texts != self._last_comments:
            self(*(f"{self._comment} {text}" for text in texts))
            self._last_comments = texts

    @contextlib.contextmanager
    def block(self, head: str, foot: str | None = None) -> Iterator[None]:
        """Writes `head`, the lines of the `with` body one step deeper, and `foot` unless it is None."""
        self(head)
        self._depth += 1
        yield
        self._depth -= 1
        if foot is not None:
            self(foot)

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def text(self) -> str:
        """Returns all lines so far, with a newline at the end."""
        return "\n".join(self._lines) + "\n"


class Form(Enum):
    """How the iterations of a kernel relate to memory order."""

    POINTWISE = "no loop inside a row; neighbouring rows are neighbours in memory"
    ROWS = "loops inside each row run along memory"
    COLUMNS = "loops inside each row run across memory; neighbouring rows are neighbours"


@record(frozen=True)
class Layout:
    """The loops of a kernel, sorted by memory order."""

    #: How the loops relate to memory order.
    form: Form
    #: The row variables, without `along`.
    outer: tuple[Var, ...]
    #: The row variable along which memory is contiguous; None in Form.ROWS.
    along: Var | None
    #: The variables of the loops inside a row.
    axes: tuple[Var, ...]


def layout_of(kernel: Kernel) -> Layout:
    """Sorts the loops of `kernel` by memory order."""
    axes = next((loop.axes for loop in kernel.loops if loop.axes), ())
    if kernel.vector is not None and kernel.vector in kernel.rows:
        outer = tuple(v for v in kernel.rows if v != kernel.vector)
        return Layout(Form.COLUMNS if axes else Form.POINTWISE, outer, kernel.vector, axes)
    return Layout(Form.ROWS if axes else Form.POINTWISE, kernel.rows, None, axes)


def stores_last(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """Returns `body` with every value computed before the first store.

    A launch may pass a tensor as a read and as a write: no statement may read an element that an earlier statement has
    overwritten.
    """
    stores = [n for n, s in enumerate(body) if isinstance(s, Store)]
    if not stores or not any(any(s.value.loads) for s in body[stores[0] + 1 :]):
        return tuple(body)
    first: list[Statement] = []
    last: list[Statement] = []
    for n, s in enumerate(body):
        if isinstance(s, Store):
            name = f"{s.buffer}_store{n}"
            first.append(Let(name, s.value, origins=s.origins))
            last.append(replace(s, value=Ref(name, s.value.dtype)))
        else:
            first.append(s)
    return (*first, *last)


def extent_of(axes: Iterable[Var]) -> Extent:
    """Returns the number of points of `axes`."""
    return product(v.extent for v in axes)


def shortest(value: float, dtype: torch.dtype) -> str:
    """Returns the shortest decimal text that reads back as the finite `value`, which is exact in `dtype`."""
    if dtype is torch.float64:
        return repr(value)
    for digits in range(1, 10):
        text = repr(float(f"{value:.{digits}g}"))
        with contextlib.suppress(OverflowError):
            if struct.unpack("f", struct.pack("f", float(text)))[0] == value:
                break
    return text


class ExpressionPrinter:
    """Prints expressions. A subclass has the tables, and spells the expressions that are not in a table."""

    #: dtype -> type name.
    types: Mapping[torch.dtype, str]
    #: Row of `OPS` -> format string, or a format string per kind (f, i, b) of operand. `{0}` is the first operand,
    #: `{type}` the type of the result.
    operations: Mapping[str, str | Mapping[str, str]]

    def __init__(self) -> None:
        # Ref -> its text at the present position in the kernel.
        self.names: dict[str, str] = {}
        # Number of the host program -> its name in the kernel.
        self.parameters: Mapping[Number | Scalar, str] = {}
        self.hoisted: dict[Expr, str] = {}

    def expr(self, e: Expr) -> str:
        """Returns the text of an expression, in parentheses where needed."""
        if e in self.hoisted:
            return self.hoisted[e]
        match e:
            case Op():
                return self.operation(e)
            case Load():
                return self.load(e)
            case Const():
                return self.const(e)
            case Cast():
                return self.cast(e)
            case IndexValue():
                return self.index_value(e)
            case Ref():
                return self.names[e.name]
            case Scalar():
                return self.parameters[e]

    def operation(self, e: Op) -> str:
        """Returns the text of an operation, from the table."""
        return self.pattern(e).format(*map(self.expr, e.args), type=self.types[e.dtype])

    def pattern(self, e: Op) -> str:
        """Returns the row of the table for an operation and the kind of its operands."""
        text = self.operations[e.name]
        return text if isinstance(text, str) else text[kind_of(e.args[-1].dtype)]

    def index(self, index: Index) -> str:
        """Returns the text of an index: a sum of products."""
        text = ""
        for atom, factor in index.terms:
            size = -factor if is_negative(factor) else factor
            term = self.atom(atom) if size == 1 else f"{self.factor(size)} * {self.atom(atom)}"
            sign = "-" if is_negative(factor) else "+"
            text = f"{text} {sign} {term}" if text else f"-{term}" if is_negative(factor) else term
        if not text:
            return self.size(index.const)
        if index.const == 0:
            return text
        return (
            f"{text} - {self.factor(-index.const)}"
            if is_negative(index.const)
            else f"{text} + {self.size(index.const)}"
        )

    def size(self, size: Extent) -> str:
        """Returns the text of a size: a sum of products of numbers."""
        return spell(size, self.parameters.__getitem__)

    def factor(self, size: Extent) -> str:
        """Returns a size in parentheses, unless it is a single number."""
        return parenthesized(size, self.parameters.__getitem__)

    def atom(self, atom: Var | FloorDiv | Mod | Lookup) -> str:
        """Returns the text of a term of an index."""
        match atom:
            case Var():
                return atom.name
            case FloorDiv():
                return f"({self.parenthesized(atom.base)} {self.floor_division} {self.factor(atom.divisor)})"
            case Mod():
                return f"({self.parenthesized(atom.base)} % {self.factor(atom.modulus)})"
            case Lookup():
                return self.expr(atom.value)

    # Bases are never negative, so the rounding of negative quotients, which differs between languages, does not matter.
    floor_division = "/"

    def parenthesized(self, index: Index) -> str:
        """Returns an index in parentheses, unless it is a single term."""
        text = self.index(index)
        return text if len(index.terms) == 1 and index.const == 0 and index.terms[0][1] == 1 else f"({text})"

    def load(self, e: Load) -> str:
        """Returns the text of a memory read."""
        raise NotImplementedError

    def const(self, e: Const) -> str:
        """Returns the text of a literal of the right type."""
        raise NotImplementedError

    def cast(self, e: Cast) -> str:
        """Returns the text of a conversion."""
        raise NotImplementedError

    def index_value(self, e: IndexValue) -> str:
        """Returns the text of an index as a number."""
        raise NotImplementedError
