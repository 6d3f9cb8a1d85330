"""Owns index expressions: integer arithmetic over loop variables whose ranges are known.

It knows nothing of tensors or element types. Every constructor simplifies, so that chains of views (reshape, permute,
slice, ...) collapse to plain strides whenever they can; equal indices are equal Python values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Var:
    """A loop variable: 0 <= value < extent."""

    name: str
    extent: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class FloorDiv:
    """`base // divisor`, divisor > 0."""

    base: Index
    divisor: int

    def __str__(self) -> str:
        return f"({self.base} // {self.divisor})"


@dataclass(frozen=True)
class Mod:
    """`base % modulus`, modulus > 0; never negative."""

    base: Index
    modulus: int

    def __str__(self) -> str:
        return f"({self.base} % {self.modulus})"


@dataclass(frozen=True)
class Lookup:
    """An index read from memory: `value` is an int64 Expr that was checked to lie in 0 <= value < extent."""

    value: Any
    extent: int

    def __str__(self) -> str:
        return f"[{self.value}]"


Atom = Var | FloorDiv | Mod | Lookup


@dataclass(frozen=True)
class Index:
    """The sum of `coefficient * atom` over `terms`, plus `const`. Terms are sorted and have no zero coefficient."""

    terms: tuple[tuple[Atom, int], ...] = ()
    const: int = 0

    def __add__(self, other: Index | int) -> Index:
        other = as_index(other)
        return _sum([*self.terms, *other.terms], self.const + other.const)

    def __sub__(self, other: Index | int) -> Index:
        return self + as_index(other) * -1

    def __mul__(self, factor: int) -> Index:
        return _sum([(atom, c * factor) for atom, c in self.terms], self.const * factor)

    def __floordiv__(self, divisor: int) -> Index:
        return _floordiv(self, divisor)

    def __mod__(self, modulus: int) -> Index:
        return _mod(self, modulus)

    def __str__(self) -> str:
        parts = [str(atom) if c == 1 else f"{c}*{atom}" for atom, c in self.terms]
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts).replace("+ -", "- ")

    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value over all values of the variables (an interval that contains them)."""
        return _bounds(self)

    def coefficient(self, var: Var) -> int:
        """The factor of `var` itself; 0 when it does not occur outside a division."""
        return dict(self.terms).get(var, 0)

    def variables(self) -> frozenset[Var]:
        """Every loop variable below this index, also inside divisions and lookups."""
        return _variables(self)

    def substitute(self, values: Mapping[Var, Index]) -> Index:
        """This index with variables replaced; variables that are not in `values` stay."""
        total = Index((), self.const)
        for atom, c in self.terms:
            total = total + _substitute_atom(atom, values) * c
        return total

    def is_linear(self) -> bool:
        """Whether every atom is a loop variable."""
        return all(isinstance(atom, Var) for atom, _ in self.terms)


def as_index(value: Index | Atom | int) -> Index:
    """An Index from an int, a variable, or an Index."""
    if isinstance(value, Index):
        return value
    return Index((), value) if isinstance(value, int) else Index(((value, 1),)) if _extent(value) != 1 else Index()


def flatten(index: Sequence[Index], strides: Iterable[int]) -> Index:
    """The offset `sum(i * stride)` in elements."""
    total = Index()
    for i, stride in zip(index, strides):
        total = total + i * stride
    return total


def delinearize(flat: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """The row-major coordinates in `shape` of the element number `flat`."""
    coordinates: list[Index] = []
    inner = 1
    for position in reversed(range(len(shape))):
        size = shape[position]
        quotient = flat // inner
        # The outermost coordinate needs no remainder; a dimension of at most one element has no other than zero.
        coordinates.append(Index() if size <= 1 else quotient if position == 0 else quotient % size)
        inner *= max(size, 1)
    return tuple(reversed(coordinates))


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor of `shape`."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _extent(atom: Atom) -> int | None:
    return atom.extent if isinstance(atom, Var) else None


def _atom_bounds(atom: Atom) -> tuple[int, int]:
    match atom:
        case Var() | Lookup():
            return 0, max(atom.extent - 1, 0)
        case FloorDiv():
            low, high = atom.base.bounds()
            return low // atom.divisor, high // atom.divisor
        case Mod():
            return 0, atom.modulus - 1


@cache
def _bounds(index: Index) -> tuple[int, int]:
    low = high = index.const
    for atom, c in index.terms:
        a, b = _atom_bounds(atom)
        low, high = low + min(a * c, b * c), high + max(a * c, b * c)
    return low, high


@cache
def _variables(index: Index) -> frozenset[Var]:
    found: set[Var] = set()
    for atom, _ in index.terms:
        match atom:
            case Var():
                found.add(atom)
            case FloorDiv() | Mod():
                found |= atom.base.variables()
            case Lookup():
                found |= atom.value.variables()
    return frozenset(found)


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


def _sum(terms: Iterable[tuple[Atom, int]], const: int) -> Index:
    """The sorted sum of `terms`, with `(b // m) * (c * m) + (b % m) * c` folded back into `b * c`."""
    total: dict[Atom, int] = {}
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


def _order(term: tuple[Atom, int]) -> tuple[int, str]:
    return -abs(term[1]), str(term[0])


def _split(index: Index, factor: int) -> tuple[Index, Index]:
    """`(a, s)` with `index == factor * a + s`, where `s` collects what `factor` does not divide."""
    whole = Index(tuple((atom, c // factor) for atom, c in index.terms if c % factor == 0), index.const // factor)
    rest = Index(tuple((atom, c) for atom, c in index.terms if c % factor), index.const % factor)
    return whole, rest


def _common_factors(index: Index, divisor: int) -> list[int]:
    """Factors > 1 of `divisor` worth trying, largest first, `divisor` itself among them."""
    return sorted({divisor, *(math.gcd(divisor, c) for _, c in index.terms)} - {1}, reverse=True)


def _fits(rest: Index, factor: int) -> bool:
    low, high = rest.bounds()
    return low >= 0 and high < factor


@cache
def _floordiv(index: Index, divisor: int) -> Index:
    if divisor == 1:
        return index
    for factor in _common_factors(index, divisor):
        whole, rest = _split(index, factor)
        if _fits(rest, factor):
            return whole // (divisor // factor)
    whole, rest = _split(index, divisor)
    if len(rest.terms) == 1 and rest.const == 0 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, FloorDiv):
            return whole + atom.base // (atom.divisor * divisor)
    return whole + Index(((FloorDiv(rest, divisor), 1),))


@cache
def _mod(index: Index, modulus: int) -> Index:
    if modulus == 1:
        return Index()
    for factor in _common_factors(index, modulus):
        whole, rest = _split(index, factor)
        if _fits(rest, factor):
            return whole % (modulus // factor) * factor + rest
    _, rest = _split(index, modulus)
    for atom, c in rest.terms:
        if isinstance(atom, Mod) and (c * atom.modulus) % modulus == 0:
            return (rest - as_index(atom) * c + atom.base * c) % modulus
    return Index(((Mod(rest, modulus), 1),))
