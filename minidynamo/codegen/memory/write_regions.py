"""Owns the question which elements a kernel changes if it writes a tensor over one that it reads.

To store what lies there already changes nothing. Where comparisons of loop variables with numbers choose what is
stored, as for a tensor of which a part is replaced, the elements that change can be told from the others. What cannot
be told counts as changed, and as read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from minidynamo.codegen.ir.expr import Const, Expr, IndexValue, Load, Op, Ref
from minidynamo.codegen.ir.index import Index, Var, as_index
from minidynamo.codegen.ir.loops import Kernel, Let, Store
from minidynamo.fake.strides import Dims, may_meet


@dataclass(frozen=True)
class Range:
    """The values `start`, `start + step`, ... of a loop variable, `count` of them."""

    start: int
    step: int
    count: int

    @property
    def end(self) -> int:
        """Above all values."""
        return self.start + self.step * self.count

    def within(self, low: int, high: int) -> Range:
        """The values from `low` up to, but not including, `high`."""
        first = self.start + self.step * max(_ceil(low - self.start, self.step), 0)
        return Range(first, self.step, max(_ceil(min(high, self.end) - first, self.step), 0))

    def congruent(self, remainder: int, modulus: int) -> Range:
        """Of neighbouring values those with a remainder."""
        first = self.start + (remainder - self.start) % modulus
        return Range(first, modulus, max(_ceil(self.end - first, modulus), 0))


Box = Mapping[Var, Range]
"""Iterations: a variable that is not named takes all of its values."""

NEGATED = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}
MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def stays(kernel: Kernel, early: Iterable[Load], late: Iterable[Load], read: str, written: str) -> bool:
    """Whether the kernel leaves what it reads of `read` as it is when it writes `written` over it. What it reads
    `early` may change in the same iteration."""
    stores = [s.index for s in kernel.statements() if isinstance(s, Store) and s.buffer == written]
    changed = [change for loop in kernel.loops for change in _changes(loop.body, read, written)]
    reading = [(load.index[0], box, stores) for load in early for box in _chosen({}, load.valid, True)]
    reading += [(load.index[0], box, []) for load in late for box in _chosen({}, load.valid, True)]
    for index, box, own in reading:
        if own and all(_within(box, place) == _within(box, index) for place in own):
            continue
        places = _places(index, box)
        if any(places is None or other is None or may_meet(*places, *other) for other in changed):
            return False
    return True


def _changes(body: Iterable[object], read: str, written: str) -> Iterator[tuple[int, Dims] | None]:
    """The places that the stores of a loop to `written` give other data than `read` has there; None for any place."""
    lets: dict[str, Expr] = {}
    for s in body:
        if isinstance(s, Let):
            lets[s.name] = s.value
        elif isinstance(s, Store) and s.buffer == written:
            yield from (_places(s.index, box) for box in _changing(s.value, s.index, read, lets, {}))


def _changing(value: Expr, place: Index, read: str, lets: Mapping[str, Expr], box: Box) -> Iterator[Box]:
    """The iterations of a box in which `value` may be another one than that of `read` at `place`."""
    match value:
        case Ref() if value.name in lets:
            yield from _changing(lets[value.name], place, read, lets, box)
        case Op(name="where", args=(condition, first, second)):
            for chosen in _chosen(box, condition, True):
                yield from _changing(first, place, read, lets, chosen)
            for chosen in _chosen(box, condition, False):
                yield from _changing(second, place, read, lets, chosen)
        case Load(buffer=buffer, index=(index,)) if buffer == read and index == place:
            yield from _chosen(box, value.valid, False)
        case _:
            yield box


def _chosen(box: Box, condition: Expr | None, truth: bool) -> list[Box]:
    """Boxes with all iterations of a box in which a condition, by default one that holds, is true or not."""
    match condition:
        case None:
            return [box] if truth else []
        case Const():
            return [box] if condition.value == truth else []
        case Op(name="and" | "or", args=(first, second)):
            both = (condition.name == "and") == truth
            if both:
                return [found for one in _chosen(box, first, truth) for found in _chosen(one, second, truth)]
            rest = [found for one in _chosen(box, first, not truth) for found in _chosen(one, second, truth)]
            return _chosen(box, first, truth) + rest
        case Op(name=name, args=(IndexValue(index=index), Const(value=int(number)))) if name in NEGATED:
            return _compared(box, name if truth else NEGATED[name], index, number)
        case Op(
            name="eq",
            args=(
                Op(name="remainder", args=(IndexValue(index=index), Const(value=int(modulus)))),
                Const(value=int(number)),
            ),
        ):
            return _divided(box, index, modulus, number) if truth else [box]
        case _:
            return [box]


def _compared(box: Box, name: str, index: Index, number: int) -> list[Box]:
    """The iterations in which an index compares with a number."""
    found = _of_one_variable(index)
    if found is None:
        return [box]
    var, factor, const = found
    bound = number - const
    if factor < 0:
        name, factor, bound = MIRRORED[name], -factor, -bound
    # `factor * var` compares with `bound`: so does `var` with the quotients, which are `last` and `first` beyond it.
    last, first = bound // factor, _ceil(bound, factor)
    values = _values(box, var)
    pieces = {
        "lt": [(values.start, first)],
        "le": [(values.start, last + 1)],
        "gt": [(last + 1, values.end)],
        "ge": [(first, values.end)],
        "eq": [(first, last + 1)],
        "ne": [(values.start, first), (last + 1, values.end)],
    }
    return _narrowed(box, var, (values.within(low, high) for low, high in pieces[name]))


def _divided(box: Box, index: Index, modulus: int, remainder: int) -> list[Box]:
    """The iterations in which an index has a remainder."""
    found = _of_one_variable(index)
    if found is None or found[1] != 1 or modulus < 1 or _values(box, found[0]).step != 1:
        return [box]
    var, _, const = found
    return _narrowed(box, var, [_values(box, var).congruent(remainder - const, modulus)])


def _narrowed(box: Box, var: Var, ranges: Iterable[Range]) -> list[Box]:
    return [{**box, var: values} for values in ranges if values.count]


def _of_one_variable(index: Index) -> tuple[Var, int, int] | None:
    """`(v, factor, const)` of an index `factor * v + const` where all sizes are known."""
    if len(index.terms) != 1 or not isinstance(index.const, int):
        return None
    atom, factor = index.terms[0]
    known = isinstance(atom, Var) and isinstance(factor, int) and isinstance(atom.extent, int)
    return (atom, factor, index.const) if known else None  # type: ignore[return-value]


def _values(box: Box, var: Var) -> Range:
    """Those of a variable whose extent is known."""
    assert isinstance(var.extent, int)
    return box.get(var, Range(0, 1, var.extent))


def _places(index: Index, box: Box) -> tuple[int, Dims] | None:
    """Where an index comes to in a box; None if that is not known."""
    index = _within(box, index)
    if not index.is_linear():
        bounds = index.bounds()
        if bounds is None or not all(isinstance(bound, int) for bound in bounds):
            return None
        return bounds[0], [(1, bounds[1] - bounds[0] + 1)]  # type: ignore[return-value]
    start, dims = index.const, []
    for atom, factor in index.terms:
        assert isinstance(atom, Var)
        if not isinstance(factor, int) or not isinstance(atom.extent, int):
            return None
        start = start + min(factor, 0) * (atom.extent - 1)
        dims.append((abs(factor), atom.extent))
    return (start, dims) if isinstance(start, int) else None


def _within(box: Box, index: Index) -> Index:
    """An index in terms of how many iterations of a box come before."""
    counted = {var: as_index(Var(var.name, values.count)) * values.step + values.start for var, values in box.items()}
    return index.substitute(counted)


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
