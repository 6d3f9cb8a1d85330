"""Owns index expressions: integer arithmetic over loop variables with ranges that are ints or sizes.

No tensors and no element types here. Every constructor simplifies, so that chains of views (reshape, permute, slice,
...) collapse to plain strides where possible; equal indices are equal Python values. A simplification that depends on a
comparison is made only if the comparison holds for all sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from minidynamo.codegen.ir.size import (
    Extent,
    Number,
    Size,
    divide,
    exact_quotient,
    floor_division,
    hint,
    known_at_least,
    known_less,
    numbers_of,
    parenthesized,
)
from minidynamo.core.records import record


@record(frozen=True)
class Var:
    """A loop variable: 0 <= value < extent."""

    name: str
    extent: Extent

    def __str__(self) -> str:
        return self.name


@record(frozen=True)
class FloorDiv:
    """`base // divisor`, divisor > 0."""

    base: Index
    divisor: Extent

    def __str__(self) -> str:
        return f"({self.base} // {parenthesized(self.divisor)})"


@record(frozen=True)
class Mod:
    """`base % modulus`, modulus > 0; never negative."""

    base: Index
    modulus: Extent

    def __str__(self) -> str:
        return f"({self.base} % {parenthesized(self.modulus)})"


@record(frozen=True)
class Lookup:
    """An index read from memory."""

    #: An int64 Expr, checked for 0 <= value < extent.
    value: Any
    extent: Extent

    def __str__(self) -> str:
        return f"[{self.value}]"


Atom = Var | FloorDiv | Mod | Lookup


@record(frozen=True)
class Index:
    """The sum of `coefficient * atom` over `terms`, plus `const`."""

    #: (atom, coefficient) pairs, sorted, without zero coefficients.
    terms: tuple[tuple[Atom, Extent], ...] = ()
    const: Extent = 0

    def __add__(self, other: Index | Extent) -> Index:
        other = as_index(other)
        if not (self.terms and other.terms):
            return Index(self.terms or other.terms, self.const + other.const)
        return _sum([*self.terms, *other.terms], self.const + other.const)

    def __sub__(self, other: Index | Extent) -> Index:
        return self + as_index(other) * -1

    def __mul__(self, factor: Extent) -> Index:
        if factor == 1:
            return self
        if factor and isinstance(factor, int) and all(isinstance(c, int) for _, c in self.terms):  # the order stays
            return Index(tuple((atom, c * factor) for atom, c in self.terms), self.const * factor)
        return _sum([(atom, c * factor) for atom, c in self.terms], self.const * factor)

    def __floordiv__(self, divisor: Extent) -> Index:
        return _floordiv(self, divisor)

    def __mod__(self, modulus: Extent) -> Index:
        return _mod(self, modulus)

    def __str__(self) -> str:
        parts = [str(atom) if c == 1 else f"{parenthesized(c)}*{atom}" for atom, c in self.terms]
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts).replace("+ -", "- ")

    def bounds(self) -> tuple[Extent, Extent] | None:
        """Returns an interval that contains all values of the index; None if it depends on numbers of unknown sign."""
        return _bounds(self)

    def coefficient(self, var: Var) -> Extent:
        """Returns the factor of `var` itself; 0 if `var` occurs in divisions only, or not at all."""
        return dict(self.terms).get(var, 0)

    def variables(self) -> frozenset[Var]:
        """Returns the loop variables below this index, also inside divisions and lookups."""
        return _variables(self)

    def substitute(self, values: Mapping[Var, Index]) -> Index:
        """Returns this index with variables replaced; variables that are not in `values` stay."""
        total = Index((), self.const)
        for atom, c in self.terms:
            total = total + _substitute_atom(atom, values) * c
        return total

    def is_linear(self) -> bool:
        """Returns whether every atom is a loop variable."""
        return all(isinstance(atom, Var) for atom, _ in self.terms)


def as_index(value: Index | Atom | Extent) -> Index:
    """Returns a number, a variable, or an Index as an Index."""
    if isinstance(value, Index):
        return value
    if isinstance(value, (int, Size)):
        return Index((), value)
    return Index(((value, 1),)) if _extent(value) != 1 else Index()


def flatten(index: Sequence[Index], strides: Iterable[Extent]) -> Index:
    """Returns the offset `sum(i * stride)` in elements."""
    total = Index()
    for i, stride in zip(index, strides):
        total = total + i * stride
    return total


def delinearize(flat: Index, shape: Sequence[Extent]) -> tuple[Index, ...]:
    """Returns the row-major coordinates in `shape` of the element number `flat`."""
    coordinates: list[Index] = []
    inner: Extent = 1
    for position in reversed(range(len(shape))):
        size = shape[position]
        quotient = flat // inner
        # The outermost coordinate needs no remainder. In a dimension of at most one element the coordinate is 0.
        coordinates.append(Index() if size in (0, 1) else quotient if position == 0 else quotient % size)
        inner = inner * at_least_one(size)
    return tuple(reversed(coordinates))


def row_major(shape: Sequence[Extent]) -> tuple[Extent, ...]:
    """Returns the strides of a contiguous tensor of `shape`."""
    strides: list[Extent] = []
    step: Extent = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * at_least_one(size)
    return tuple(reversed(strides))


def at_least_one(size: Extent) -> Extent:
    """Returns `max(size, 1)`. A symbolic size stays unchanged: where it is 0, no element is addressed."""
    return max(size, 1) if isinstance(size, int) else size


def numbers_in_index(index: Index) -> Iterable[Number]:
    """Yields the numbers in the coefficients and divisors of an index, without the numbers below lookups."""
    yield from numbers_of(index.const)
    for atom, c in index.terms:
        yield from numbers_of(c)
        match atom:
            case FloorDiv():
                yield from numbers_of(atom.divisor)
                yield from numbers_in_index(atom.base)
            case Mod():
                yield from numbers_of(atom.modulus)
                yield from numbers_in_index(atom.base)


def _extent(atom: Atom) -> Extent | None:
    return atom.extent if isinstance(atom, Var) else None


def _atom_bounds(atom: Atom) -> tuple[Extent, Extent] | None:
    match atom:
        case Var() | Lookup():
            return 0, max(atom.extent - 1, 0) if isinstance(atom.extent, int) else atom.extent - 1
        case FloorDiv():
            bounds = atom.base.bounds()
            if bounds is None:
                return None
            return floor_division(bounds[0], atom.divisor), floor_division(bounds[1], atom.divisor)
        case Mod():
            return 0, atom.modulus - 1


@cache
def _bounds(index: Index) -> tuple[Extent, Extent] | None:
    low = high = index.const
    for atom, c in index.terms:
        bounds = _atom_bounds(atom)
        if bounds is None:
            return None
        if known_at_least(c, 0):
            low, high = low + bounds[0] * c, high + bounds[1] * c
        elif known_less(c, 1):
            low, high = low + bounds[1] * c, high + bounds[0] * c
        else:
            return None
    return low, high


@cache
def _variables(index: Index) -> frozenset[Var]:
    variables: set[Var] = set()
    for atom, _ in index.terms:
        match atom:
            case Var():
                variables.add(atom)
            case FloorDiv() | Mod():
                variables |= atom.base.variables()
            case Lookup():
                variables |= atom.value.variables()
    return frozenset(variables)


def _substitute_atom(atom: Atom, values: Mapping[Var, Index]) -> Index:
    match atom:
        case Var():
            return values.get(atom, as_index(atom))
        case FloorDiv():
            return atom.base.substitute(values) // atom.divisor
        case Mod():
            return atom.base.substitute(values) % atom.modulus
        case Lookup():
            return as_index(Lookup(atom.value.substitute(values), atom.extent))


def _sum(terms: Iterable[tuple[Atom, Extent]], const: Extent) -> Index:
    """Returns the sorted sum of `terms`, with `(b // m) * (c * m) + (b % m) * c` folded back into `b * c`."""
    total: dict[Atom, Extent] = {}
    for atom, c in terms:
        total[atom] = total.get(atom, 0) + c
    total = {atom: c for atom, c in total.items() if c}
    for atom, c in total.items():
        if isinstance(atom, Mod):
            quotient = atom.base // atom.modulus
            if len(quotient.terms) == 1 and quotient.const == 0 and quotient.terms[0][1] == 1:
                partner = quotient.terms[0][0]
                if total.get(partner) == c * atom.modulus:
                    rest = [(a, k) for a, k in total.items() if a not in (atom, partner)]
                    return _sum([*rest, *(atom.base * c).terms], const + atom.base.const * c)
    return Index(tuple(sorted(total.items(), key=_order)), const)


def _order(term: tuple[Atom, Extent]) -> tuple[bool, int, str, str]:
    """Sorts sizes before ints, and large coefficients before small ones."""
    atom, c = term
    if isinstance(c, int):
        return True, -abs(c), "", str(atom)
    return False, -abs(hint(c)), str(c), str(atom)


def _split(index: Index, factor: Extent) -> tuple[Index, Index]:
    """Returns `(a, s)` with `index == factor * a + s`, where `s` collects the terms that `factor` does not divide."""
    if not isinstance(factor, int):
        return _split_by_size(index, factor)
    parts = [(atom, c, exact_quotient(c, factor)) for atom, c in index.terms]
    quotient, remainder = divide(index.const, factor)
    whole = Index(tuple((atom, q) for atom, _, q in parts if q is not None), quotient)
    return whole, Index(tuple((atom, c) for atom, c, q in parts if q is None), remainder)


def _split_by_size(index: Index, factor: Size) -> tuple[Index, Index]:
    """Splits like `_split`, coefficient by coefficient, for coefficients that are polynomials."""
    parts = [(atom, *divide(c, factor)) for atom, c in index.terms]
    quotient, remainder = divide(index.const, factor)
    return _sum([(atom, q) for atom, q, _ in parts], quotient), _sum([(atom, r) for atom, _, r in parts], remainder)


def _common_factors(index: Index, divisor: Extent) -> list[Extent]:
    """Returns factors > 1 of `divisor` worth trying, largest first, including `divisor` itself."""
    if isinstance(divisor, int):
        factors = {divisor, *(math.gcd(divisor, _content(c)) for _, c in index.terms)} - {1}
        return [*sorted(factors, reverse=True)]
    shared = {c for _, c in index.terms if c != 1 and exact_quotient(divisor, c) is not None}
    return sorted({divisor, *shared}, key=lambda c: (-hint(c), str(c)))


def _content(c: Extent) -> int:
    """Returns the largest int that divides a coefficient."""
    return c if isinstance(c, int) else math.gcd(*(k for _, k in c.terms))


def _fits(rest: Index, factor: Extent) -> bool:
    bounds = rest.bounds()
    return bounds is not None and known_at_least(bounds[0], 0) and known_less(bounds[1], factor)


def _split_above_zero(index: Index, divisor: Extent) -> tuple[Index, Index]:
    """Splits like `_split`, with a rest that is never negative if the index is never negative.

    Languages differ in how they divide negative numbers (for `7 - i`, divided by 4, the rest would be `3 - i`).
    """
    whole, rest = _split(index, divisor)
    bounds = rest.bounds()
    if bounds is not None and known_at_least(bounds[0], 0):
        return whole, rest
    if bounds is not None and isinstance(bounds[0], int) and isinstance(divisor, int):
        more = -(bounds[0] // divisor)
        return whole - more, rest + more * divisor
    falls = any(not known_at_least(c, 0) for c in (rest.const, *(c for _, c in rest.terms)))
    return (Index(), index) if falls else (whole, rest)


@cache
def _floordiv(index: Index, divisor: Extent) -> Index:
    if divisor == 1:
        return index
    for factor in _common_factors(index, divisor):
        whole, rest = _split(index, factor)
        if _fits(rest, factor):
            return whole // _over(divisor, factor)
    whole, rest = _split_above_zero(index, divisor)
    if len(rest.terms) == 1 and rest.const == 0 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, FloorDiv):
            return whole + atom.base // (atom.divisor * divisor)
    return whole + Index(((FloorDiv(rest, divisor), 1),))


@cache
def _mod(index: Index, modulus: Extent) -> Index:
    if modulus == 1:
        return Index()
    for factor in _common_factors(index, modulus):
        whole, rest = _split(index, factor)
        if _fits(rest, factor):
            return whole % _over(modulus, factor) * factor + rest
    _, rest = _split_above_zero(index, modulus)
    for atom, c in rest.terms:
        if isinstance(atom, Mod) and exact_quotient(c * atom.modulus, modulus) is not None:
            return (rest - as_index(atom) * c + atom.base * c) % modulus
    return Index(((Mod(rest, modulus), 1),))


def _over(size: Extent, factor: Extent) -> Extent:
    """Returns `size / factor` for a factor from `_common_factors`."""
    quotient = exact_quotient(size, factor)
    assert quotient is not None
    return quotient
