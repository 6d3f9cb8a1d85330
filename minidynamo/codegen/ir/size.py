"""Owns sizes that are known at run time only: polynomials over symbols, and the facts known about them now.

An *extent* is a plain int or a `Size`. Operations on extents return an int where possible, so that static graphs never
see a `Size`. The answer to an undecidable question is False or None, and the caller takes the general path.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, TypeGuard

from minidynamo.core.records import record

UNKNOWN_HINT = 64
"""The guess for a number that has not been observed. Guesses choose tiles and orders, never results."""


@record(frozen=True)
class Symbol:
    """A whole number of the host program."""

    #: The name in the host program.
    name: str
    #: A lower bound; None if unknown.
    lower: int | None
    #: The value in the traced call.
    hint: int = UNKNOWN_HINT
    #: Whether the program computed the number, so that any magnitude is possible. Other symbols are sizes and strides
    #: of tensors.
    large: bool = False

    def __str__(self) -> str:
        return self.name


@record(frozen=True)
class Derived:
    """A whole number that the host program computes from other numbers."""

    #: A key of DERIVED.
    op: str
    args: tuple[Extent, Extent]
    #: A lower bound; None if unknown.
    lower: int | None

    @property
    def hint(self) -> int:
        """Returns the value for the hints of the operands."""
        return int(_apply(self.op, *map(hint, self.args)))

    def __str__(self) -> str:
        return DERIVED[self.op].format(*map(parenthesized, self.args))


Number = Symbol | Derived
Monomial = tuple[Number, ...]

DERIVED = {
    "floordiv": "({} // {})",
    "mod": "({} % {})",
    "max": "max({}, {})",
    "min": "min({}, {})",
    "exact": "({} + {})",
}
"""Operation -> Python expression. An "exact" sum is computed by the host program: in a kernel it could wrap."""


def _apply(op: str, a: int, b: int) -> int:
    functions: dict[str, Callable[[int, int], int]] = {"floordiv": operator.floordiv, "mod": operator.mod}
    functions["exact"] = operator.add
    return functions[op](a, b) if op in functions else max(a, b) if op == "max" else min(a, b)


@record(frozen=True)
class Size:
    """The sum of `coefficient * product of numbers` over `terms`. A constant is an int instead."""

    #: (numbers, coefficient) pairs, sorted.
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
    """Returns a number as a size."""
    return Size((((number,), 1),))


def is_extent(value: Any) -> TypeGuard[Extent]:
    """Returns whether a value is a whole number, known or symbolic."""
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
    """Sorts high degrees first, the constant last. With this graded order, the leading term of a product is the product
    of the leading terms."""
    return -len(term[0]), tuple(map(str, term[0]))


# ---- what is known ----


def known_at_least(value: Extent, bound: int) -> bool:
    """Returns whether `value >= bound` for all values of the symbols."""
    return value >= bound if isinstance(value, int) else _lowest(value) >= bound


def known_less(a: Extent, b: Extent) -> bool:
    """Returns whether `a < b` for all values of the symbols."""
    return a < b if isinstance(a, int) and isinstance(b, int) else known_at_least(b - a, 1)


@cache
def _lowest(value: Size) -> float:
    """Returns a lower bound of `value`: with each symbol written as `lower + rest`, the constant term, if no product of
    rests has a negative coefficient."""
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
    """Returns the value that `value` had in the traced call; for guesses only."""
    if isinstance(value, int):
        return value
    return sum(c * math.prod(number.hint for number in monomial) for monomial, c in value.terms)


# ---- arithmetic ----


def product(sizes: Iterable[Extent]) -> Extent:
    """Returns the product of sizes."""
    total: Extent = 1
    for size in sizes:
        total = total * size
    return total


def divide(a: Extent, b: Extent) -> tuple[Extent, Extent]:
    """Returns `(q, r)` with `a == q * b + r`, by polynomial division.

    `q` takes as much as possible out of `a`. As for ints, `r` has no other guarantee.
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
        if not monomial:  # the constant, divided by an int: the rest is the remainder
            break
    return quotient, _make([*rest, *_terms(a)])


def _without(monomial: Monomial, part: Monomial) -> Monomial | None:
    """Returns `monomial / part`; None if `part` is not a factor."""
    left = list(monomial)
    for number in part:
        if number not in left:
            return None
        left.remove(number)
    return tuple(left)


def exact_quotient(a: Extent, b: Extent) -> Extent | None:
    """Returns `a / b` if it is known to be whole, else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if a % b == 0 else None
    quotient, rest = divide(a, b)
    return quotient if rest == 0 else None


def floor_division(a: Extent, b: Extent, lower: int | None = None) -> Extent:
    """Returns `a // b`. `lower` is a lower bound of the result that the caller knows, if better than the operands
    imply."""
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
    """Returns an operation of DERIVED applied to two extents; an int if the result is known."""
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
        if exact_quotient(a, b) is not None:
            return 0
        lowest = 0 if known_at_least(b, 1) else -math.inf
    lower = int(lowest) if lower is None and lowest > -math.inf else lower
    return size_of(Derived(op, (a, b), lower))


def exact(value: Extent) -> Extent:
    """Returns `value` as one number of the host program, unless `value` is one number or is computed from sizes alone.

    A number that a program computes from its own numbers may not fit into an int64; passing it to a kernel is then an
    error.
    """
    if isinstance(value, int) or value in map(size_of, numbers_of(value)):
        return value
    return size_of(Derived("exact", (value, 0), None)) if any(s.large for s in symbols_of(value)) else value


def ceil_division(a: Extent, b: Extent) -> Extent:
    """Returns the number of steps of `b` that cover `a` elements."""
    return -floor_division(-a, b) if isinstance(a, int) else floor_division(a + b - 1, b)


def numbers_of(value: Extent) -> Iterable[Number]:
    """Yields the numbers in the polynomial, without the operands of derived numbers."""
    return () if isinstance(value, int) else (number for monomial, _ in value.terms for number in monomial)


def symbols_of(value: Extent) -> Iterable[Symbol]:
    """Yields all symbols below a size, with the symbols below derived numbers."""
    for number in numbers_of(value):
        if isinstance(number, Symbol):
            yield number
        else:
            yield from (symbol for a in number.args for symbol in symbols_of(a))


def evaluate(value: Extent, values: Mapping[Number, int]) -> int:
    """Returns the value of a size for given numbers."""
    if isinstance(value, int):
        return value
    return sum(c * math.prod(values[number] for number in monomial) for monomial, c in value.terms)


# ---- text ----


def spell(value: Extent, name: Callable[[Number], str]) -> str:
    """Returns the text of a sum of products, in the syntax of all targets. `name` returns the text of a number."""
    text = ""
    for monomial, c in _terms(value):
        factors = [name(number) for number in monomial]
        factors = [str(abs(c)), *factors] if abs(c) != 1 or not factors else factors
        term = " * ".join(factors)
        text = f"{text} {'-' if c < 0 else '+'} {term}" if text else f"-{term}" if c < 0 else term
    return text


def parenthesized(value: Extent, name: Callable[[Number], str] = str) -> str:
    """Returns the text of `spell`, in parentheses unless it is one positive number."""
    text = spell(value, name)
    single = isinstance(value, int) or (
        len(value.terms) == 1 and value.terms[0][1] == 1 and len(value.terms[0][0]) == 1
    )
    return text if single and not text.startswith("-") else f"({text})"


def is_negative(value: Extent) -> bool:
    """Returns whether a text of `value` is better written as a subtraction."""
    return value < 0 if isinstance(value, int) else all(c < 0 for _, c in value.terms)
