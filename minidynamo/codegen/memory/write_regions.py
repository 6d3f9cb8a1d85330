"""Owns the check whether a kernel or an operator may write its result over one of its operands, and the set of elements
that such a kernel changes.

Storing the present element changes nothing. If the stored value is selected by comparisons of loop variables with
constants, as when a slice of a tensor is replaced, the changed elements are known. An undecidable element counts as
changed and as read. Other readers of the operand, and when they run, are not considered here:
`planner.py` and `input_placement.py` check them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from minidynamo.codegen.ir.expr import Const, Expr, IndexValue, Load, Op, Ref
from minidynamo.codegen.ir.index import Index, Var, as_index
from minidynamo.codegen.ir.loops import Buffer, Extern, Kernel, Let, Name, Store, names_in
from minidynamo.codegen.runtime.host_functions import PART_WRITERS
from minidynamo.core.records import record
from minidynamo.fake.strides import Dims, may_meet
from minidynamo.memory.graph_plan import IN_PLACE_FILLS


@record(frozen=True)
class Range:
    """The values `start`, `start + step`, ... of a loop variable."""

    start: int
    step: int
    #: The number of values.
    count: int

    @property
    def end(self) -> int:
        """Returns a bound above all values."""
        return self.start + self.step * self.count

    def within(self, low: int, high: int) -> Range:
        """Returns the values from `low` up to, but not including, `high`."""
        first = self.start + self.step * max(_ceil(low - self.start, self.step), 0)
        return Range(first, self.step, max(_ceil(min(high, self.end) - first, self.step), 0))

    def congruent(self, remainder: int, modulus: int) -> Range:
        """Returns the values with a given remainder; the values must be consecutive."""
        first = self.start + (remainder - self.start) % modulus
        return Range(first, modulus, max(_ceil(self.end - first, modulus), 0))


Box = Mapping[Var, Range]
"""A set of iterations. A variable without an entry takes all its values."""

NEGATED = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le", "eq": "ne", "ne": "eq"}
MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def leaves_reads_unchanged(
    kernel: Kernel, same_iteration: Iterable[Load], later: Iterable[Load], read: str, written: str
) -> bool:
    """Returns whether no element of `read` that the kernel still reads changes when the kernel writes `written` over
    `read`.

    Elements that loads in `same_iteration` read may change in the same iteration.
    """
    stores = [s.index for s in kernel.statements() if isinstance(s, Store) and s.buffer == written]
    changed = [change for loop in kernel.loops for change in _changed_regions(loop.body, read, written)]
    reading = [(load.index[0], box, stores) for load in same_iteration for box in _boxes_where({}, load.valid, True)]
    reading += [(load.index[0], box, []) for load in later for box in _boxes_where({}, load.valid, True)]
    for index, box, stores_of_iteration in reading:
        if stores_of_iteration and all(_rebased(box, offset) == _rebased(box, index) for offset in stores_of_iteration):
            continue
        region = _region(index, box)
        if any(region is None or change is None or may_meet(*region, *change) for change in changed):
            return False
    return True


def _changed_regions(body: Iterable[object], read: str, written: str) -> Iterator[tuple[int, Dims] | None]:
    """Yields the regions where the stores of a loop to `written` change the data of `read`; None is an unknown
    region."""
    lets: dict[str, Expr] = {}
    for s in body:
        if isinstance(s, Let):
            lets[s.name] = s.value
        elif isinstance(s, Store) and s.buffer == written:
            yield from (_region(s.index, box) for box in _changing_boxes(s.value, s.index, read, lets, {}))


def _changing_boxes(value: Expr, offset: Index, read: str, lets: Mapping[str, Expr], box: Box) -> Iterator[Box]:
    """Yields the iterations of a box in which `value` may differ from the element of `read` at `offset`."""
    match value:
        case Ref() if value.name in lets:
            yield from _changing_boxes(lets[value.name], offset, read, lets, box)
        case Op(name="where", args=(condition, first, second)):
            for chosen in _boxes_where(box, condition, True):
                yield from _changing_boxes(first, offset, read, lets, chosen)
            for chosen in _boxes_where(box, condition, False):
                yield from _changing_boxes(second, offset, read, lets, chosen)
        case Load(buffer=buffer, index=(index,)) if buffer == read and index == offset:
            yield from _boxes_where(box, value.valid, False)
        case _:
            yield box


def _boxes_where(box: Box, condition: Expr | None, truth: bool) -> list[Box]:
    """Returns boxes that cover all iterations of a box in which `condition` equals `truth`. A missing condition is
    true."""
    match condition:
        case None:
            return [box] if truth else []
        case Const():
            return [box] if condition.value == truth else []
        case Op(name="and" | "or", args=(first, second)):
            needs_both = (condition.name == "and") == truth
            boxes = _boxes_where(box, first, truth if needs_both else not truth)
            both = [inner for outer in boxes for inner in _boxes_where(outer, second, truth)]
            return both if needs_both else _boxes_where(box, first, truth) + both
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
    """Returns the iterations in which the comparison `name` holds between an index and a number."""
    parts = _single_variable(index)
    if parts is None:
        return [box]
    var, factor, const = parts
    bound = number - const
    if factor < 0:
        name, factor, bound = MIRRORED[name], -factor, -bound
    # `factor * var` compares with `bound` like `var` with the quotients: `last` is rounded down, `first` is rounded up.
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
    """Returns the iterations in which `index % modulus == remainder`."""
    parts = _single_variable(index)
    if parts is None or parts[1] != 1 or modulus < 1 or _values(box, parts[0]).step != 1:
        return [box]
    var, _, const = parts
    return _narrowed(box, var, [_values(box, var).congruent(remainder - const, modulus)])


def _narrowed(box: Box, var: Var, ranges: Iterable[Range]) -> list[Box]:
    return [{**box, var: values} for values in ranges if values.count]


def _single_variable(index: Index) -> tuple[Var, int, int] | None:
    """Returns `(v, factor, const)` for an index `factor * v + const` with known sizes, else None."""
    if len(index.terms) != 1 or not isinstance(index.const, int):
        return None
    atom, factor = index.terms[0]
    is_known = isinstance(atom, Var) and isinstance(factor, int) and isinstance(atom.extent, int)
    return (atom, factor, index.const) if is_known else None  # type: ignore[return-value]


def _values(box: Box, var: Var) -> Range:
    """Returns the values of a variable with a known extent."""
    assert isinstance(var.extent, int)
    return box.get(var, Range(0, 1, var.extent))


def _region(index: Index, box: Box) -> tuple[int, Dims] | None:
    """Returns the region of memory that an index covers in a box, as (start, dimensions); None if unknown."""
    index = _rebased(box, index)
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


def _rebased(box: Box, index: Index) -> Index:
    """Returns an index in terms of the iteration numbers inside a box."""
    counted = {var: as_index(Var(var.name, values.count)) * values.step + values.start for var, values in box.items()}
    return index.substitute(counted)


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


aten = torch.ops.aten


def same_layout(a: Buffer, b: Buffer) -> bool:
    """Returns whether both tensors have the same sizes, strides, dtype and device."""
    return (a.shape, a.stride, a.dtype, a.device) == (b.shape, b.stride, b.dtype, b.device)


def fits(a: Buffer, b: Buffer) -> bool:
    """Returns whether both tensors can share memory, whatever their shapes: same dtype and device, same number of
    elements, no gaps."""
    return (a.dtype, a.device) == (b.dtype, b.device) and a.numel == a.span == b.numel == b.span


def may_overwrite(kernel: Kernel, read: str, written: str) -> bool:
    """Returns whether the kernel may write `written` over `read`.

    The kernel may if the last read of each element is in the iteration that writes the element, or if the write leaves
    the element unchanged.
    """
    offsets = {s.index for s in kernel.statements() if isinstance(s, Store) and s.buffer == written}
    same_iteration: list[Load] = []
    later: list[Load] = []
    is_written = False
    for loop in kernel.loops:
        loads = [load for s in loop.body for load in s.value.loads if load.buffer == read]
        if is_written:
            later += loads
        else:
            same_iteration += [load for load in loads if {load.index[0]} != offsets]
        is_written = is_written or any(isinstance(s, Store) and s.buffer == written for s in loop.body)
    return not (same_iteration or later) or leaves_reads_unchanged(kernel, same_iteration, later, read, written)


def argument_orders(call: Extern) -> Iterator[Extern]:
    """Yields `call`, and the call with exchanged arguments if the result is the same to the last bit."""
    yield call
    if call.op in (aten.add.Tensor, aten.mul.Tensor) and not call.kwargs and isinstance(call.args[1], Name):
        yield replace(call, args=call.args[::-1])


def fillable_argument(call: Extern, owners: Callable[[str], Collection[str]]) -> str | None:
    """Returns the argument that `call` copies and fills, if `call` may fill the argument itself instead; else None.

    No other argument may share storage with the filled argument. `owners(name)` returns the values that own the storage
    of `name`.
    """
    first = call.args[0] if call.args else None
    if in_place_operator(call) is None or call.layout is None or not isinstance(first, Name):
        return None
    rest = [*names_in(call.args[1:]), *names_in(tuple(value for _, value in call.kwargs))]
    storage = {*owners(first.name)}
    return None if any(not storage.isdisjoint(owners(name)) for name in rest) else first.name


def in_place_operator(call: Extern) -> Any:
    """Returns the function that fills the first argument of `call`, where `call` fills a copy; None without one."""
    return call.in_place or IN_PLACE_FILLS.get(call.op) or PART_WRITERS.get(call.op)
