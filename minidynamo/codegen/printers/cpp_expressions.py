"""Owns the C++ text of expressions and folds: the tables of operations and types, literals, loads, possible failures,
and start, step and result of a reduction.

`cpp.py` prints loops and places the statements in them; `runtime/include/vecmath.h` has the functions that the tables
name.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence, Set

import torch

from minidynamo.codegen.ir.expr import HALF, Cast, Const, Expr, IndexValue, Load, Op, Ref, children
from minidynamo.codegen.ir.index import Index, Var, as_index, flatten, row_major
from minidynamo.codegen.ir.loops import Accumulate, Let, Statement, Store
from minidynamo.codegen.printers.base import COMMON, ExpressionPrinter, library_calls, shortest
from minidynamo.core.records import record

TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "half",
    torch.bfloat16: "bfloat16",
    torch.int8: "int8_t",
    torch.int16: "int16_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
    torch.uint8: "uint8_t",
    torch.bool: "bool",
}

STORED = {**TYPES, torch.bool: "boolean"}
"""The types of elements in memory. GCC does not vectorize loops that read or write elements of C++'s bool."""

OPERATIONS: dict[str, str | Mapping[str, str]] = {
    **COMMON,
    **library_calls("m_"),
    "div": "({0} / {1})",
    "floordiv": {"f": "m_floordiv({0}, {1})", "i": "floordiv({0}, {1}, failed)"},
    "truncdiv": {"f": "m_trunc({0} / {1})", "i": "truncdiv({0}, {1}, failed)"},
    "remainder": {"f": "m_remainder({0}, {1})", "i": "remainder_int({0}, {1}, failed)"},
    "fmod": {"f": "m_fmod({0}, {1})", "i": "fmod_int({0}, {1}, failed)"},
    "abs": "absolute({0})",
    "sign": "sign_of({0})",
    "min": {"f": "minimum({0}, {1})", "i": "minimum({0}, {1})", "b": "({0} && {1})"},
    "max": {"f": "maximum({0}, {1})", "i": "maximum({0}, {1})", "b": "({0} || {1})"},
    "rsqrt": "(1 / m_sqrt({0}))",
    "reciprocal": "(1 / {0})",
    "round": "m_rint({0})",
    "pow": {"f": "m_pow({0}, {1})", "i": "power_int({0}, {1})"},
    "isinf": "(absolute({0}) == INF)",
    "and": {"i": "({0} & {1})", "b": "({0} && {1})"},
    "or": {"i": "({0} | {1})", "b": "({0} || {1})"},
    "xor": {"i": "({0} ^ {1})", "b": "({0} != {1})"},
    "not": {"i": "(~{0})", "b": "(!{0})"},
    "shl": "shift_left({0}, {1})",
    "shr": "shift_right({0}, {1})",
    "where": "({0} ? {1} : {2})",
    "check_index": "check_index({0}, {1}, failed, INDEX_OUT_OF_RANGE)",
    "check_data": "check_index({0}, {1}, failed, DATA_OUT_OF_BOUNDS)",
    "check_subscript": "check_index({0}, {1}, failed, SUBSCRIPT_OUT_OF_RANGE, {2})",
    "check_target": "check_index({0}, {1}, failed, TARGET_OUT_OF_RANGE)",
    "check_gather": "check_index({0}, {1}, failed, GATHER_OUT_OF_RANGE, {2})",
    "floor": "m_floor({0})",
    "ceil": "m_ceil({0})",
    "sqrt": "m_sqrt({0})",
    "sigmoid": "m_sigmoid({0})",
}
"""Operation -> text, or a text per kind of operands."""

EVALUATED_ALWAYS = {"where": "choose({0}, {1}, {2})", "and": "({0} & {1})", "or": "({0} | {1})"}
"""The text of short-circuiting operations, for operands that can fail: all operands run, because eager raises the
error."""

# C++ computes with these types in int, so the result is cast back.
NARROW = (torch.int8, torch.int16, torch.uint8)


class CppExpressions(ExpressionPrinter):
    """Prints the expressions of a kernel. Buffers are `p_<name>`."""

    types = TYPES
    operations = OPERATIONS

    def may_fail(self, e: Expr) -> bool:
        """Returns whether evaluating `e` here can record a failure; hoisted parts have already recorded theirs."""
        return any(map(_can_fail, _reachable(e, self.hoisted)))

    def operation(self, e: Op) -> str:
        text = super().operation(e)
        if e.name in EVALUATED_ALWAYS and any(map(self.may_fail, e.args[1:])):
            text = EVALUATED_ALWAYS[e.name].format(*map(self.expr, e.args))
        return f"({TYPES[e.dtype]}){text}" if e.dtype in NARROW and text.startswith("(") else text

    def load(self, e: Load) -> str:
        text = f"p_{e.buffer}[{self.index(e.index[0])}]"
        text = read(text, e.dtype)
        return text if e.valid is None else f"({self.expr(e.valid)} ? {text} : {TYPES[e.dtype]}(0))"

    def const(self, e: Const) -> str:
        if e.dtype is torch.bool:
            return "true" if e.value else "false"
        if not e.dtype.is_floating_point:
            # C++ has no literal for the smallest int64.
            text = f"{int(e.value)}" if e.value != -(2**63) else "-9223372036854775807 - 1"
            return f"{TYPES[e.dtype]}({text})"
        if math.isnan(e.value) or math.isinf(e.value):
            text = "NOT_A_NUMBER" if math.isnan(e.value) else "INF" if e.value > 0 else "-INF"
            return text if e.dtype is torch.float32 else f"cast<{TYPES[e.dtype]}>({text})"
        if e.dtype is torch.float64:
            return shortest(e.value, e.dtype)
        text = f"{shortest(e.value, torch.float32)}f"
        return text if e.dtype is torch.float32 else f"cast<{TYPES[e.dtype]}>({text})"

    def cast(self, e: Cast) -> str:
        if isinstance(e.value, Const):  # compilers and processors convert infinity to different integers
            return self.const(
                Const(torch.tensor(e.value.value, dtype=e.value.dtype, device="cpu").to(e.dtype).item(), e.dtype)
            )
        return f"cast<{TYPES[e.dtype]}>({self.expr(e.value)})"

    def index_value(self, e: IndexValue) -> str:
        return f"cast<{TYPES[e.dtype]}>((int64_t)({self.index(e.index)}))"


def read(element: str, dtype: torch.dtype) -> str:
    """Returns the value of an element of memory."""
    return f"is_true({element})" if dtype is torch.bool else element


def stored(value: str, dtype: torch.dtype) -> str:
    """Returns the element of memory for a value."""
    return f"(boolean){value}" if dtype is torch.bool else value


WORTH_NAMING = 4  # a cost as in OPS


def expressions_of(s: Statement) -> tuple[Expr, ...]:
    """Returns the expressions that a statement evaluates, with its indices."""
    if isinstance(s, Store):
        return (s.value, IndexValue(s.index, torch.int64))
    if isinstance(s, Accumulate) and s.position is not None:
        return (s.value, IndexValue(s.position, torch.int64))
    return (s.value,)


def _can_fail(e: Expr) -> bool:
    """Returns whether this operation itself can find an error in its operands."""
    if not isinstance(e, Op):
        return False
    text = OPERATIONS[e.name]
    return "failed" in (text if isinstance(text, str) else text.get("i", "")) and not e.dtype.is_floating_point


def _reachable(e: Expr, known: Container[Expr]) -> Iterator[Expr]:
    """Yields `e` and all expressions below it, without the expressions in `known`."""
    yield e
    for child in children(e):
        if child not in known:
            yield from _reachable(child, known)


def invariants(body: Sequence[Statement], inner: Set[Var], varying: Set[str]) -> Iterator[Expr]:
    """Yields the largest expressions in `body` that are equal for all values of `inner` and worth computing only once.

    `varying` names the values from other loops that change with `inner`. The address of a guarded load is left out: it
    may not be evaluated elsewhere.
    """
    varying = varying | {s.name for s in body if isinstance(s, (Let, Accumulate))}

    def visit(e: Expr) -> Iterator[Expr]:
        if isinstance(e, Load) and e.valid is not None:
            yield from visit(e.valid)
        elif inner & e.variables() or any(isinstance(part, Ref) and part.name in varying for part in e.below):
            for child in children(e):
                yield from visit(child)
        elif e.cost >= WORTH_NAMING or any(e.loads):
            yield e

    for s in body:
        for e in expressions_of(s):
            yield from visit(e)


CHOICES = frozenset(("where", "min", "max"))


def reads_across(body: Sequence[Statement], along: Var) -> list[Load]:
    """Returns the reads of a loop `along` a variable that are not contiguous, if the loop chooses between values."""
    found = list(dict.fromkeys(part for s in body for e in expressions_of(s) for part in e.below))
    if not any(isinstance(e, Op) and e.name in CHOICES for e in found):
        return []
    return [e for e in found if isinstance(e, Load) and not children(e) and _is_across(e.index[0], along)]


def _is_across(index: Index, along: Var) -> bool:
    return along in index.variables() and along in (index - as_index(along)).variables()


# combine -> (start, fold of old {0} and new {1}, name of the fold in a reduction clause)
FOLDS = {
    "sum": ("0", "{0} + {1}", "+"),
    "prod": ("1", "{0} * {1}", "*"),
    "max": ("Limits<{type}>::low", "maximum({0}, {1})", "maximum"),
    "min": ("Limits<{type}>::high", "minimum({0}, {1})", "minimum"),
    "any": ("0", "{0} | {1}", "|"),
    "all": ("1", "{0} & {1}", "&"),
}
COMPARISONS = {"argmax": "exceeds", "argmin": "undercuts"}


@record(frozen=True)
class Fold:
    """An Accumulate in C++."""

    #: The statement.
    source: Accumulate
    #: Whether the fold is a long float sum: blocks are added in float (`part`), and the blocks in double.
    is_blocked: bool
    #: Whether the loops visit positions in ascending order, so that the first of equal values is met first.
    in_order: bool
    #: Whether the fold is a short float sum, which runs in double from the start: no extra cost, and a single rounding.
    short: bool = False

    @staticmethod
    def of(s: Accumulate, axes: Sequence[Var], sum_block: int, short: bool = False) -> Fold:
        visited = flatten([as_index(v) for v in axes], row_major([v.extent for v in axes]))
        is_sum = s.combine == "sum" and s.dtype is torch.float32
        return Fold(s, sum_block > 0 and is_sum, s.position in (None, visited), short=short and is_sum)

    @staticmethod
    def all_of(body: Sequence[Statement], axes: Sequence[Var], sum_block: int, short: bool = False) -> list[Fold]:
        """Returns the folds of a loop. `short`: the loop has few steps per result."""
        return [Fold.of(s, axes, sum_block, short) for s in body if isinstance(s, Accumulate)]

    @property
    def combine(self) -> str:
        """Returns the row of FOLDS; on bools, max and min are any and all."""
        if self.source.dtype is torch.bool:
            return {"max": "any", "min": "all"}.get(self.source.combine, self.source.combine)
        return self.source.combine

    @property
    def compared(self) -> str:
        """Returns the type of the fold's operands. Half types fold as float, which is exact for comparisons."""
        dtype = torch.float32 if self.source.dtype in HALF else self.source.dtype
        return "int32_t" if self.combine in ("any", "all") else TYPES[dtype]

    @property
    def type(self) -> str:
        if self.source.combine in COMPARISONS:
            return "int64_t"
        return "double" if self.is_blocked or self.short else self.compared

    @property
    def total(self) -> str:
        return f"{self.source.combine}_{self.source.name}"

    @property
    def part(self) -> str:
        return f"part_{self.source.name}"

    @property
    def current(self) -> str:
        """Returns the variable that the innermost loop folds into."""
        return self.part if self.is_blocked else self.total

    @property
    def clause(self) -> str:
        return "" if self.source.combine in COMPARISONS else FOLDS[self.combine][2]

    def declarations(self) -> list[str]:
        rows = [f"{self.type} {self.total}"]
        return [*rows, f"{self.compared} best_{self.source.name}"] if self.source.combine in COMPARISONS else rows

    def start(self, here: str) -> list[str]:
        if self.source.combine in COMPARISONS:
            return [f"{self.total}{here} = -1", f"best_{self.source.name}{here} = 0"]
        return [f"{self.total}{here} = {FOLDS[self.combine][0].format(type=self.compared)}"]

    def step(self, here: str, value: str, position: str) -> list[str]:
        """Returns the statements that fold `value` in."""
        if self.source.dtype in HALF:
            value = f"to_float({value})"
        target = f"{self.current}{here}"
        if self.source.combine not in COMPARISONS:
            return [f"{target} = {FOLDS[self.combine][1].format(target, value)};"]
        name, best = self.source.name, f"best_{self.source.name}{here}"
        better = f"{COMPARISONS[self.source.combine]}(new_{name}, {best})"
        if not self.in_order:
            better += f" || ({position} < {target} && !{COMPARISONS[self.source.combine]}({best}, new_{name}))"
        return [
            f"const {self.compared} new_{name} = {value};",
            f"const bool take_{name} = {target} < 0 || {better};",
            f"{best} = take_{name} ? new_{name} : {best};",
            f"{target} = take_{name} ? {position} : {target};",
        ]

    def value(self, here: str) -> str:
        """Returns the result, as an expression of the type that readers expect."""
        if self.source.combine in COMPARISONS:
            return f"{self.total}{here}"
        return f"cast<{TYPES[self.source.dtype]}>({self.total}{here})"
