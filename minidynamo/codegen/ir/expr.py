"""Owns the value expressions of a loop body and the table of pointwise operations.

The table has the meaning of an operation (arity, result type), never its spelling: each printer has a table for that.
Element types are torch dtypes. Conversions are explicit `Cast` nodes, so half types round exactly where a cast appears.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import torch

from minidynamo.codegen.ir.index import FloorDiv, Index, Lookup, Mod, Var
from minidynamo.core.records import record


@record(frozen=True)
class OpInfo:
    """A pointwise operation on operands of one dtype."""

    #: The number of operands.
    arity: int
    #: The accepted dtypes, as letters: f (float32, float64), i (integers), b (bool).
    kinds: str = "f"
    #: "same" (dtype of the operands) or "bool".
    result: str = "same"
    #: The cost in additions, roughly. A value of cost EXPENSIVE or more is not computed twice.
    cost: int = 1
    #: A remark on the semantics, for readers.
    doc: str = ""


EXPENSIVE = 8

HALF = (torch.float16, torch.bfloat16)
"""Types that kernels load, store and move, but do not compute with."""


def kind_of(dtype: torch.dtype) -> str:
    """Returns the letter of `OpInfo.kinds` for a dtype."""
    if dtype == torch.bool:
        return "b"
    return "f" if dtype.is_floating_point else "i"


OPS: dict[str, OpInfo] = {
    "add": OpInfo(2, "fi"),
    "sub": OpInfo(2, "fi"),
    "mul": OpInfo(2, "fi"),
    "div": OpInfo(2, "f", cost=4, doc="IEEE division"),
    "floordiv": OpInfo(2, "fi", cost=8, doc="rounds to minus infinity; floats as torch's floor_divide"),
    "truncdiv": OpInfo(2, "fi", cost=8, doc="rounds to zero"),
    "remainder": OpInfo(2, "fi", cost=8, doc="sign of the divisor, as Python"),
    "fmod": OpInfo(2, "fi", cost=8, doc="sign of the dividend, as C"),
    "neg": OpInfo(1, "fi"),
    "abs": OpInfo(1, "fi"),
    "sign": OpInfo(1, "fi", doc="0 for NaN, as eager"),
    "min": OpInfo(2, "fib", doc="NaN if either operand is NaN"),
    "max": OpInfo(2, "fib", doc="NaN if either operand is NaN"),
    "fma": OpInfo(3, "f", doc="a * b + c, rounded once"),
    "floor": OpInfo(1, "f"),
    "ceil": OpInfo(1, "f"),
    "trunc": OpInfo(1, "f"),
    "round": OpInfo(1, "f", doc="half to even"),
    "sqrt": OpInfo(1, "f", cost=6),
    "rsqrt": OpInfo(1, "f", cost=8, doc="1 / sqrt(a), two roundings"),
    "reciprocal": OpInfo(1, "f", cost=4),
    "exp": OpInfo(1, "f", cost=10),
    "exp2": OpInfo(1, "f", cost=10),
    "expm1": OpInfo(1, "f", cost=15),
    "log": OpInfo(1, "f", cost=12),
    "log2": OpInfo(1, "f", cost=12),
    "log10": OpInfo(1, "f", cost=12),
    "log1p": OpInfo(1, "f", cost=15),
    "sin": OpInfo(1, "f", cost=20),
    "cos": OpInfo(1, "f", cost=20),
    "tan": OpInfo(1, "f", cost=25),
    "asin": OpInfo(1, "f", cost=25),
    "acos": OpInfo(1, "f", cost=25),
    "atan": OpInfo(1, "f", cost=25),
    "sinh": OpInfo(1, "f", cost=25),
    "cosh": OpInfo(1, "f", cost=25),
    "tanh": OpInfo(1, "f", cost=15),
    "asinh": OpInfo(1, "f", cost=25),
    "acosh": OpInfo(1, "f", cost=25),
    "atanh": OpInfo(1, "f", cost=25),
    "atan2": OpInfo(2, "f", cost=30),
    "hypot": OpInfo(2, "f", cost=20),
    "copysign": OpInfo(2, "f"),
    "erf": OpInfo(1, "f", cost=15),
    "erfc": OpInfo(1, "f", cost=20),
    "lgamma": OpInfo(1, "f", cost=40),
    "sigmoid": OpInfo(1, "f", cost=14, doc="1 / (1 + exp(-a))"),
    "pow": OpInfo(2, "fi", cost=30, doc="integers: exact power, negative exponents as torch"),
    "isnan": OpInfo(1, "f", "bool"),
    "isinf": OpInfo(1, "f", "bool"),
    "eq": OpInfo(2, "fib", "bool"),
    "ne": OpInfo(2, "fib", "bool"),
    "lt": OpInfo(2, "fib", "bool"),
    "le": OpInfo(2, "fib", "bool"),
    "gt": OpInfo(2, "fib", "bool"),
    "ge": OpInfo(2, "fib", "bool"),
    "and": OpInfo(2, "ib", doc="bitwise; on bools logical"),
    "or": OpInfo(2, "ib"),
    "xor": OpInfo(2, "ib"),
    "not": OpInfo(1, "ib", doc="bitwise complement; on bools logical"),
    "shl": OpInfo(2, "i", doc="0 for a shift below 0 or >= the width"),
    "shr": OpInfo(2, "i", doc="arithmetic; a shift below 0 or >= the width leaves nothing but the sign"),
    "where": OpInfo(3, "fib", doc="(bool, a, a) -> a; both sides are evaluated"),
    "check_index": OpInfo(2, "i", cost=8, doc="int64 a if 0 <= a < b, else an IndexError after the launch"),
    "check_data": OpInfo(2, "i", cost=8, doc="as check_index, with index_select's RuntimeError for dimension 1"),
    "check_subscript": OpInfo(3, "i", cost=8, doc="as check_index, with the message of subscripts; c is the dimension"),
    "check_target": OpInfo(2, "i", cost=8, doc="as check_index, with the message of losses over classes"),
    "check_gather": OpInfo(3, "i", cost=8, doc="as check_index, with gather's RuntimeError; c is the dimension"),
}
"""Operation name -> properties.

Operands and result share a dtype, except where `result` is "bool"; the first operand of `where` is a bool. Half types
reach no operation but `where`: lowering casts to float32 and back.
"""


class _CachedFacts:
    """Properties of an expression that are read often. Expressions are immutable, so each property is computed once.

    An expression without operands depends on no variable.
    """

    def variables(self) -> frozenset[Var]:
        return frozenset()

    def substitute(self, values: Mapping[Var, Index]) -> Expr:
        return self  # type: ignore[return-value]

    @cached_property
    def below(self) -> tuple[Expr, ...]:
        """The expression and all expressions below it, parents first."""
        expressions: list[Expr] = []
        waiting: list[Any] = [self]
        while waiting:
            expressions.append(waiting.pop())
            waiting += reversed(children(expressions[-1]))
        return tuple(expressions)

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """All memory reads in the expression."""
        return tuple(e for e in self.below if isinstance(e, Load))

    @cached_property
    def checks(self) -> frozenset[Expr]:
        """All checks of indices in the expression; a failed check raises an error for the user."""
        return frozenset(e for e in self.below if isinstance(e, Op) and e.name.startswith("check_"))

    @cached_property
    def cost(self) -> int:
        """The cost of evaluating the expression once, roughly, in additions."""
        return sum(OPS[e.name].cost for e in self.below if isinstance(e, Op))


@record(frozen=True)
class Load(_CachedFacts):
    """Reads the element of `buffer` at `index`.

    Where the bool expression `valid` is false, memory is not touched and the value is unspecified.
    """

    buffer: str
    #: One coordinate per dimension; in a kernel a single storage offset.
    index: tuple[Index, ...]
    dtype: torch.dtype
    valid: Expr | None = None

    def variables(self) -> frozenset[Var]:
        variables: frozenset[Var] = frozenset().union(*(i.variables() for i in self.index))
        return variables | self.valid.variables() if self.valid is not None else variables

    def substitute(self, values: Mapping[Var, Index]) -> Expr:
        valid = None if self.valid is None else self.valid.substitute(values)
        return Load(self.buffer, tuple(i.substitute(values) for i in self.index), self.dtype, valid)


@record(frozen=True)
class Const(_CachedFacts):
    """A literal."""

    #: Exact for `dtype`: lowering has rounded it.
    value: bool | int | float
    dtype: torch.dtype


@record(frozen=True)
class IndexValue(_CachedFacts):
    """The value of an index expression as a number (arange, argmax, bounds of a pad)."""

    index: Index
    dtype: torch.dtype

    def variables(self) -> frozenset[Var]:
        return self.index.variables()

    def substitute(self, values: Mapping[Var, Index]) -> Expr:
        return IndexValue(self.index.substitute(values), self.dtype)


@record(frozen=True)
class Cast(_CachedFacts):
    """`value` converted to `dtype` as torch does: float to int truncates, anything to bool compares with zero."""

    value: Expr
    dtype: torch.dtype

    def variables(self) -> frozenset[Var]:
        return self.value.variables()

    def substitute(self, values: Mapping[Var, Index]) -> Expr:
        return Cast(self.value.substitute(values), self.dtype)


@record(frozen=True)
class Op(_CachedFacts):
    """An operation of OPS applied to operands."""

    name: str
    args: tuple[Expr, ...]
    #: The dtype of the result.
    dtype: torch.dtype

    def variables(self) -> frozenset[Var]:
        return frozenset().union(*(a.variables() for a in self.args))

    def substitute(self, values: Mapping[Var, Index]) -> Expr:
        return Op(self.name, tuple(a.substitute(values) for a in self.args), self.dtype)


@record(frozen=True)
class Ref(_CachedFacts):
    """The value of an earlier `Let` or `Accumulate` of the kernel."""

    name: str
    dtype: torch.dtype


@record(frozen=True)
class Scalar(_CachedFacts):
    """A Python float of the host program that is passed to the kernel."""

    #: The name in the host program.
    name: str
    dtype: torch.dtype = torch.float64

    def __str__(self) -> str:
        return self.name


Expr = Load | Const | IndexValue | Cast | Op | Ref | Scalar


def children(expr: Expr) -> tuple[Expr, ...]:
    """Returns the expressions directly below `expr`, with the expressions inside its indices."""
    match expr:
        case Op():
            return expr.args
        case Cast():
            return (expr.value,)
        case Load():
            valid = () if expr.valid is None else (expr.valid,)
            return (*(e for i in expr.index for e in _lookups(i)), *valid)
        case IndexValue():
            return tuple(_lookups(expr.index))
        case _:
            return ()


def _lookups(index: Index) -> Iterator[Expr]:
    for atom, _ in index.terms:
        if isinstance(atom, Lookup):
            yield atom.value
        elif not isinstance(atom, Var):
            yield from _lookups(atom.base)


def rewrite(expr: Expr, replace: Callable[[Expr], Expr | None]) -> Expr:
    """Replaces each node of `expr` for which `replace` returns an expression, innermost first."""
    match expr:
        case Op():
            rewritten: Expr = Op(expr.name, tuple(rewrite(a, replace) for a in expr.args), expr.dtype)
        case Cast():
            rewritten = Cast(rewrite(expr.value, replace), expr.dtype)
        case Load():
            valid = None if expr.valid is None else rewrite(expr.valid, replace)
            rewritten = Load(expr.buffer, tuple(_rewrite_index(i, replace) for i in expr.index), expr.dtype, valid)
        case IndexValue():
            rewritten = IndexValue(_rewrite_index(expr.index, replace), expr.dtype)
        case _:
            rewritten = expr
    replaced = replace(rewritten)
    return rewritten if replaced is None else replaced


def _rewrite_index(index: Index, replace: Callable[[Expr], Expr | None]) -> Index:
    if index.is_linear():
        return index
    total = Index((), index.const)
    for atom, c in index.terms:
        match atom:
            case Lookup():
                total = total + Index(((Lookup(rewrite(atom.value, replace), atom.extent), c),))
            case Var():
                total = total + Index(((atom, c),))
            case FloorDiv():
                total = total + _rewrite_index(atom.base, replace) // atom.divisor * c
            case Mod():
                total = total + _rewrite_index(atom.base, replace) % atom.modulus * c
    return total


def mask(expr: Expr, valid: Expr) -> Expr:
    """Returns `expr` with no memory read where `valid` is false; the value is unspecified there."""

    def masked(e: Expr) -> Expr | None:
        if not isinstance(e, Load):
            return None
        both_valid = valid if e.valid is None else Op("and", (valid, e.valid), torch.bool)
        return Load(e.buffer, e.index, e.dtype, both_valid)

    return rewrite(expr, masked)


def rename(expr: Expr, old: str, new: str) -> Expr:
    """Returns `expr` reading the buffer `new` instead of `old`."""

    def renamed(e: Expr) -> Expr | None:
        return Load(new, e.index, e.dtype, e.valid) if isinstance(e, Load) and e.buffer == old else None

    return rewrite(expr, renamed) if any(load.buffer == old for load in expr.loads) else expr
