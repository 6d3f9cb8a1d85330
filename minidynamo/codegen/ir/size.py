"""Owns sizes that are known at run time only: polynomials over symbols, and what is known of them now.

An *extent* is a plain int or a `Size`. Every operation on extents gives an int where it can, so that static graphs
never see a `Size`. What is not known now is answered with False or None, and whoever asks takes the general way.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeGuard

UNKNOWN_HINT = 64
"""What a number is guessed to be if nobody has seen it. Guesses choose tiles and orders, never results."""


@dataclass(frozen=True)
class Symbol:
    """A whole number that the host program knows under `name`: at least `lower` (None: anything), at first `hint`. A
    `large` one may be as large as the program has made it, others are sizes and strides of tensors."""

    name: str
    lower: int | None
    hint: int = UNKNOWN_HINT
    large: bool = False

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Derived:
    """A whole number that the host program computes of others: a row of DERIVED. At least `lower`."""

    op: str
    args: tuple[Extent, Extent]
    lower: int | None

    @property
    def hint(self) -> int:
        """What the hints of the operands give."""
        return int(_apply(self.op, *map(hint, self.args)))

    def __str__(self) -> str:
        return DERIVED[self.op].format(*map(group, self.args))


Number = Symbol | Derived
Monomial = tuple[Number, ...]

DERIVED = {
    "floordiv": "({} // {})",
    "mod": "({} % {})",
    "max": "max({}, {})",
    "min": "min({}, {})",
    "exact": "({} + {})",
}
"""Operation -> how Python spells it. An "exact" sum is one that is not left to kernels, which would wrap."""


def _apply(op: str, a: int, b: int) -> int:
    functions: dict[str, Callable[[int, int], int]] = {"floordiv": operator.floordiv, "mod": operator.mod}
    functions["exact"] = operator.add
    return functions[op](a, b) if op in functions else max(a, b) if op == "max" else min(a, b)


@dataclass(frozen=True)
class Size:
    """The sum of `coefficient * product of numbers` over `terms`, which are sorted. A constant is an int instead."""

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Extent) -> Extent:
        return _make([*self.terms, *_terms(other)])

    def __mul__(self, other: Extent) -> Extent:
        return _make((tuple(sorted((*a, *b), key=str)), c * d) for a, c in self.terms for b, d in _terms(other))

    def __neg__(self) -> Extent:
        return _make((monomial, -c) for monomial, c in self.terms)

    def __sub__(self, other: Extent) -> Extent:
        return self + -other

    def __rsub__(self, other: Extent) -> Extent:
        return -self + other

    __radd__ = __add__
    __rmul__ = __mul__

    def __str__(self) -> str:
        return spell(self, str)


Extent = int | Size


def size_of(number: Number) -> Size:
    """A number as a size."""
    return Size((((number,), 1),))


def is_extent(value: Any) -> TypeGuard[Extent]:
    """Whether a value is a whole number, known or not."""
    return isinstance(value, (int, Size)) and not isinstance(value, bool)


def _terms(value: Extent) -> Iterable[tuple[Monomial, int]]:
    return value.terms if isinstance(value, Size) else (((), value),)


def _make(terms: Iterable[tuple[Monomial, int]]) -> Extent:
    total: dict[Monomial, int] = {}
    for monomial, c in terms:
        total[monomial] = total.get(monomial, 0) + c
    total = {monomial: c for monomial, c in total.items() if c}
    if not total.keys() - {()}:
        return total.get((), 0)
    return Size(tuple(sorted(total.items(), key=_order)))


def _order(term: tuple[Monomial, int]) -> tuple[int, tuple[str, ...]]:
    """High degrees first, the constant last; a graded order, so that leading terms of products are products of them."""
    return -len(term[0]), tuple(map(str, term[0]))


# ---- what is known ----


def known_at_least(value: Extent, bound: int) -> bool:
    """Whether `value >= bound` whatever the symbols turn out to be."""
    return value >= bound if isinstance(value, int) else _lowest(value) >= bound


def known_less(a: Extent, b: Extent) -> bool:
    """Whether `a < b` whatever the symbols turn out to be."""
    return a < b if isinstance(a, int) and isinstance(b, int) else known_at_least(b - a, 1)


@cache
def _lowest(value: Size) -> float:
    """A number that `value` is never below: with every symbol as `lower + rest`, what stands without a rest, if no
    rest has a negative coefficient."""
    shifted: dict[Monomial, int] = {}
    for monomial, c in value.terms:
        parts: dict[Monomial, int] = {(): c}
        for number in monomial:
            if number.lower is None:
                return -math.inf
            grown: dict[Monomial, int] = {}
            for rest, k in parts.items():
                more = tuple(sorted((*rest, number), key=str))
                grown[more] = grown.get(more, 0) + k
                grown[rest] = grown.get(rest, 0) + k * number.lower
            parts = grown
        for rest, k in parts.items():
            shifted[rest] = shifted.get(rest, 0) + k
    lowest = shifted.pop((), 0)
    return lowest if all(k >= 0 for k in shifted.values()) else -math.inf


def hint(value: Extent) -> int:
    """What `value` was when the graph was traced, for guesses only."""
    if isinstance(value, int):
        return value
    return sum(c * math.prod(number.hint for number in monomial) for monomial, c in value.terms)


# ---- arithmetic ----


def product(sizes: Iterable[Extent]) -> Extent:
    """All of them multiplied."""
    total: Extent = 1
    for size in sizes:
        total = total * size
    return total


def divide(a: Extent, b: Extent) -> tuple[Extent, Extent]:
    """`(q, r)` with `a == q * b + r`, by polynomial division; no more is promised of `r` than for ints.

    Of several such pairs it is the one that takes as much as possible out of `a`.
    """
    if isinstance(a, int) and isinstance(b, int):
        return divmod(a, b)
    quotient: Extent = 0
    rest: list[tuple[Monomial, int]] = []
    lead, factor = next(iter(_terms(b)))
    while not isinstance(a, int) or (a and isinstance(b, int)):
        (monomial, c), *_ = _terms(a)
        left = _without(monomial, lead)
        k = c // factor if left is not None else 0
        if left is None or not k or (c % factor and monomial):
            rest.append((monomial, c))
            a = a - _make([(monomial, c)])
            continue
        quotient = quotient + _make([(left, k)])
        a = a - _make([(left, k)]) * b
        if not monomial:  # the constant, by an int: what is left is the remainder
            break
    return quotient, _make([*rest, *_terms(a)])


def _without(monomial: Monomial, part: Monomial) -> Monomial | None:
    """`monomial / part`, None if that is none."""
    left = list(monomial)
    for number in part:
        if number not in left:
            return None
        left.remove(number)
    return tuple(left)


def exactly(a: Extent, b: Extent) -> Extent | None:
    """`a / b` if that is known to be whole."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if a % b == 0 else None
    quotient, rest = divide(a, b)
    return quotient if rest == 0 else None


def floor_division(a: Extent, b: Extent, lower: int | None = None) -> Extent:
    """`a // b`. `lower` is what the caller knows of the result, if that is more than follows from the operands."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    quotient, rest = divide(a, b)
    if known_at_least(rest, 0) and known_less(rest, b):
        return quotient
    if known_less(rest, 0) and known_at_least(rest + b, 0):
        return quotient - 1
    if lower is None and known_at_least(a, 0) and known_at_least(b, 1):
        lower = int(_bound(a)) // b if isinstance(b, int) else 0
    return size_of(Derived("floordiv", (a, b), lower))


def _bound(value: Extent) -> float:
    return value if isinstance(value, int) else _lowest(value)


def derived(op: str, a: Extent, b: Extent, lower: int | None = None) -> Extent:
    """A row of DERIVED, an int where it is known."""
    if op == "floordiv":
        return floor_division(a, b, lower)
    if isinstance(a, int) and isinstance(b, int):
        return _apply(op, a, b)
    if op in ("max", "min"):
        first, second = (a, b) if op == "max" else (b, a)
        if known_at_least(a - b, 0):
            return first
        if known_at_least(b - a, 0):
            return second
        lowest = max(_bound(a), _bound(b)) if op == "max" else min(_bound(a), _bound(b))
    else:
        if exactly(a, b) is not None:
            return 0
        lowest = 0 if known_at_least(b, 1) else -math.inf
    lower = int(lowest) if lower is None and lowest > -math.inf else lower
    return size_of(Derived(op, (a, b), lower))


def exact(value: Extent) -> Extent:
    """`value` as one number of the host program, unless it is one, or computed of sizes alone: what a program computes
    of its own numbers may not fit into an int64, which is an error where a kernel is handed it."""
    if isinstance(value, int) or value in map(size_of, numbers_of(value)):
        return value
    return size_of(Derived("exact", (value, 0), None)) if any(s.large for s in symbols_of(value)) else value


def ceil_division(a: Extent, b: Extent) -> Extent:
    """How many steps of `b` cover `a` elements."""
    return -floor_division(-a, b) if isinstance(a, int) else floor_division(a + b - 1, b)


def numbers_of(value: Extent) -> Iterable[Number]:
    """The numbers that a size is a polynomial of; those below derived ones are not among them."""
    return () if isinstance(value, int) else (number for monomial, _ in value.terms for number in monomial)


def symbols_of(value: Extent) -> Iterable[Symbol]:
    """Every symbol below a size."""
    for number in numbers_of(value):
        if isinstance(number, Symbol):
            yield number
        else:
            yield from (symbol for a in number.args for symbol in symbols_of(a))


def evaluate(value: Extent, values: Mapping[Number, int]) -> int:
    """What a size is for these numbers."""
    if isinstance(value, int):
        return value
    return sum(c * math.prod(values[number] for number in monomial) for monomial, c in value.terms)


# ---- text ----


def spell(value: Extent, name: Callable[[Number], str]) -> str:
    """A sum of products, as every target of ours writes it; `name` says what a number is called."""
    text = ""
    for monomial, c in _terms(value):
        factors = [name(number) for number in monomial]
        factors = [str(abs(c)), *factors] if abs(c) != 1 or not factors else factors
        term = " * ".join(factors)
        text = f"{text} {'-' if c < 0 else '+'} {term}" if text else f"-{term}" if c < 0 else term
    return text


def group(value: Extent, name: Callable[[Number], str] = str) -> str:
    """The same, in parentheses unless it is one positive number."""
    text = spell(value, name)
    single = isinstance(value, int) or (
        len(value.terms) == 1 and value.terms[0][1] == 1 and len(value.terms[0][0]) == 1
    )
    return text if single and not text.startswith("-") else f"({text})"


def is_negative(value: Extent) -> bool:
    """Whether a text of `value` is better written as minus something."""
    return value < 0 if isinstance(value, int) else all(c < 0 for _, c in value.terms)
