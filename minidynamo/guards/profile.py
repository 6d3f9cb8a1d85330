"""Owns the record of varied values: per frame point and source, the sizes, strides and numbers that became symbolic.

Creates no symbols; `shapes.py` does. An entry changes in one direction only: unset, one value, any value ("?").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from types import CodeType
from typing import Any

from minidynamo.core.records import record
from minidynamo.guards.varying_items import VaryingItems

# The values of a size, stride or number so far: a single value, a text such as "S(1)" for a stride that equals size
# times stride of that dimension, or None for several values.
Fact = int | float | str | None
# A line of the program: file, line number, and the source of the number that the line needs as a constant, or a member
# of `LOOPS`.
Line = tuple[str, int, str]

# The last parts of the lines of loops: `for` and `while`.
LOOPS = ("", "while")

# The code of a break before an instruction that needs a number as a constant.
NEEDS_CONSTANT = "MD218"


@record
class TripCounts:
    """Trip counts of unrolled loops, per program line. A function's frames share the record with the frames of its
    callees.
    """

    #: the trip counts in each capture, for lines whose trip count may vary
    captures: dict[Line, set[frozenset[float | str]]] = field(default_factory=dict)
    # All trip counts, also of captures in which they were constants.
    unrolled: dict[Line, set[float]] = field(default_factory=dict)
    #: whether a graph has ended before a loop because of the trip count
    has_cut: bool = False

    def numbers(self, line: Line) -> tuple[int, set[float | str]]:
        """Returns the number of distinct captures, and all trip counts in them."""
        captures = self.captures.get(line, set())
        return len(captures), {number for capture in captures for number in capture}

    def note(self, numbers: Mapping[Line, set[float | str]]) -> None:
        """Adds the trip counts of one capture."""
        for line, found in numbers.items():
            self.captures.setdefault(line, set()).add(frozenset(found))

    def note_cut(self) -> None:
        """Records that a graph has ended before a loop. The constants so far are forgotten: a size may have been one
        because the trip count was."""
        if not self.has_cut:
            self.captures = {line: found for line, found in self.captures.items() if line[2] in LOOPS}
        self.has_cut = True

    def clear(self) -> None:
        """Clears the record."""
        self.captures.clear()
        self.unrolled.clear()
        self.has_cut = False


@record(eq=False)
class Finiteness:
    """A record per frame point: whether all numbers were finite of which the frame asks whether they are."""

    #: False after a graph found an infinite number or NaN
    all_numbers_were_finite: bool = True
    #: whether a frozen function needs this entry for all calls, and such calls run eagerly
    is_frozen: bool = False


@record
class FrameProfile:
    """The values seen by the captures of one frame point."""

    #: True: sizes and numbers are symbolic from the first capture on; False: they never are
    dynamic: bool | None = None
    #: name of a source -> its number
    numbers: dict[str, Fact] = field(default_factory=dict)
    #: name of a source -> (sizes, strides) of its tensor
    tensors: dict[str, tuple[tuple[Fact, ...], tuple[Fact, ...]]] = field(default_factory=dict)
    #: trip counts of unrolled loops
    trip_counts: TripCounts = field(default_factory=TripCounts)
    #: name of a source -> its text, or the identity of its object; None for several
    texts: dict[str, str | None] = field(default_factory=dict)
    #: whether the frame follows a graph break, or is called at a graph break; loops around such a frame pass it
    #: different texts, functions and enum members
    is_inner: bool = False
    #: items of sequences whose kind varies
    items: VaryingItems = field(default_factory=VaryingItems)
    #: whether decisions about infinite numbers and NaN may be captured as if there were none
    finite: Finiteness = field(default_factory=Finiteness, compare=False)
    #: the positions, as code objects and indices, of reads of tensors that come before the graph
    early_reads: set[tuple[CodeType, int]] = field(default_factory=set, compare=False)

    def has_varied(self) -> bool:
        """Returns whether some size, stride or number is symbolic."""
        layouts = (fact for layout in self.tensors.values() for part in layout for fact in part)
        return self.dynamic is True or (self.dynamic is None and None in (*layouts, *self.numbers.values()))

    def varies(self, name: str, value: int | float | str) -> bool:
        """Records the number at a source, and returns whether it has varied."""
        known = self.numbers.setdefault(name, value)
        if known is not None and (not _same(known, value) or self.items.has_number(name)):
            self.numbers[name] = known = None
        return known is None and self.dynamic is not False

    def text_varies(self, name: str, value: str) -> bool:
        """Records the text (or the identity of the object) at a source of an inner frame, and returns whether it has
        varied.
        """
        if not self.is_inner or self.dynamic is False:
            return False
        if self.texts.setdefault(name, value) != value:
            self.texts[name] = None
        return self.texts[name] is None

    def add(self, other: FrameProfile) -> None:
        """Merges another profile of the frame point."""
        together = joined(self, other)
        self.numbers, self.tensors = together.numbers, together.tensors
        self.items.add(other.items)

    def add_numbers(self, others: Iterable[FrameProfile]) -> None:
        """Merges the numbers, but no sizes, of the profiles of equal callables."""
        for other in others:
            self.numbers = joined(self, other).numbers

    def merge_sizes(self, other: FrameProfile) -> bool:
        """Merges the sizes of another profile for the tensors with the same numbers of dimensions, and returns whether
        further sizes vary."""
        before = {name: known for name, known in self.tensors.items() if name in other.tensors}
        for name, (sizes, strides) in before.items():
            others, jumps = other.tensors[name]
            if len(sizes) == len(others):
                self.tensors[name] = (_join(sizes, others), _join(strides, jumps))
        return any(self.tensors[name] != known for name, known in before.items())

    def layout(
        self, name: str, sizes: Sequence[int], strides: Sequence[int]
    ) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
        """Records the sizes and strides of the tensor at a source, and returns which sizes and which strides have
        varied.
        """
        seen = (tuple(sizes), relative_strides(sizes, strides))
        known = self.tensors.get(name, seen)
        if len(known[0]) != len(sizes):
            known = ((None,) * len(sizes), (None,) * len(sizes))
        self.tensors[name] = joined = (_join(known[0], seen[0]), _join(known[1], seen[1]))
        allowed = self.dynamic is not False
        varied = [tuple(allowed and fact is None for fact in facts) for facts in joined]
        return varied[0], varied[1]


def relative_strides(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int | str, ...]:
    """Returns the strides, with "S(k)" for a stride that follows from the next inner dimension k: a contiguous tensor
    then stays contiguous.
    """
    order = sorted(range(len(sizes)), key=lambda k: (strides[k], -k))
    facts: dict[int, int | str] = {}
    for rank, k in enumerate(order):
        inner = order[rank - 1] if rank else None
        follows = inner is not None and strides[k] not in (0, 1) and strides[k] == sizes[inner] * strides[inner]
        facts[k] = f"S({inner})" if follows else strides[k]
    return tuple(facts[k] for k in range(len(sizes)))


def joined(one: FrameProfile, other: FrameProfile) -> FrameProfile:
    """Merges two profiles of one frame point; `dynamic` is taken from the first."""
    numbers = one.numbers | other.numbers
    for name in one.numbers.keys() & other.numbers.keys():
        if not _same(one.numbers[name], other.numbers[name]):
            numbers[name] = None
    tensors = one.tensors | other.tensors
    for name in one.tensors.keys() & other.tensors.keys():
        (sizes, strides), (others, jumps) = one.tensors[name], other.tensors[name]
        if len(sizes) == len(others):
            tensors[name] = (_join(sizes, others), _join(strides, jumps))
        else:
            anything = (None,) * max(len(sizes), len(others))
            tensors[name] = (anything, anything)
    return FrameProfile(one.dynamic, numbers, tensors)


def _join(known: Sequence[Fact], seen: Sequence[Fact]) -> tuple[Fact, ...]:
    return tuple(one if one == other else None for one, other in zip(known, seen))


def _same(known: Fact, value: Fact) -> bool:
    return type(known) is type(value) and (known == value or (known != known and value != value))


def as_lines(profiles: Mapping[str, FrameProfile]) -> list[str]:
    """Lists the varied values for readers: per source its sizes, with `?` for varied sizes."""
    lines: list[str] = []
    for name, profile in profiles.items():
        lines.append(f"{name}:")
        for source, (sizes, strides) in sorted(profile.tensors.items()):
            line = f"  {source}: size {_text(sizes)}"
            lines.append(line + (f" stride {_text(strides)}" if strides and None in (*sizes, *strides) else ""))
        lines += [f"  {source}: {'?' if value is None else value}" for source, value in sorted(profile.numbers.items())]
    return lines


def _text(facts: Sequence[Any]) -> str:
    return f"[{', '.join('?' if fact is None else str(fact) for fact in facts)}]"
