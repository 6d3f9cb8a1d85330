"""Owns what has been seen to vary: per frame point and source, which sizes, strides and numbers became symbolic.

It makes no symbols; `shapes.py` does. An entry only ever goes one way: unset, a value, then anything ("?").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# What a size, stride or number has been: a value, a text such as "S(1)" for a stride that is the product of the size
# and stride of that dimension, or None for several values.
Fact = int | float | str | None
# A line of the program: file and number, and the place of the number that it needs as a constant, if it is that.
Line = tuple[str, int, str]


@dataclass
class Turns:
    """How often what is unrolled at each line of the program was, in each capture in which that may have been another
    number. It is common to the frames of a function and those of what it calls."""

    captures: dict[Line, set[frozenset[float | str]]] = field(default_factory=dict)
    # All numbers, also of captures in which they were constants.
    unrolled: dict[Line, set[float]] = field(default_factory=dict)

    def numbers(self, line: Line) -> tuple[int, set[float | str]]:
        """How many captures differ, and all numbers that they had."""
        captures = self.captures.get(line, set())
        return len(captures), {number for capture in captures for number in capture}

    def note(self, numbers: Mapping[Line, set[float | str]]) -> None:
        """Add those of one capture."""
        for line, found in numbers.items():
            self.captures.setdefault(line, set()).add(frozenset(found))

    def clear(self) -> None:
        """Forget all."""
        self.captures.clear()
        self.unrolled.clear()


@dataclass
class FrameProfile:
    """What the captures of one frame point have seen.

    `dynamic`: True for a frame whose sizes and numbers are symbolic from the first capture on, False for one in which
    none ever is. `numbers`, `tensors` and `texts` are by the name of the source. `is_inner`: whether the frame lies
    behind a graph break, or is called at one, where loops come with other texts, functions and members of enums.
    """

    dynamic: bool | None = None
    numbers: dict[str, Fact] = field(default_factory=dict)
    tensors: dict[str, tuple[tuple[Fact, ...], tuple[Fact, ...]]] = field(default_factory=dict)
    turns: Turns = field(default_factory=Turns)
    texts: dict[str, str | None] = field(default_factory=dict)
    is_inner: bool = False

    def has_varied(self) -> bool:
        """Whether anything is symbolic."""
        layouts = (fact for layout in self.tensors.values() for part in layout for fact in part)
        return self.dynamic is True or (self.dynamic is None and None in (*layouts, *self.numbers.values()))

    def varies(self, name: str, value: int | float | str) -> bool:
        """Whether the number at a source has had another value; it is noted now."""
        known = self.numbers.setdefault(name, value)
        if known is not None and not _same(known, value):
            self.numbers[name] = known = None
        return known is None and self.dynamic is not False

    def text_varies(self, name: str, value: str) -> bool:
        """Whether the text at a source of an inner frame, or what tells a function or so, has been another one; it is
        noted now."""
        if not self.is_inner or self.dynamic is False:
            return False
        if self.texts.setdefault(name, value) != value:
            self.texts[name] = None
        return self.texts[name] is None

    def add(self, other: FrameProfile) -> None:
        """Note what another profile of the frame point has seen."""
        together = joined(self, other)
        self.numbers, self.tensors = together.numbers, together.tensors

    def layout(
        self, name: str, sizes: Sequence[int], strides: Sequence[int]
    ) -> tuple[tuple[bool, ...], tuple[bool, ...]]:
        """Which sizes and which strides of the tensor at a source have varied; those it has now are noted."""
        seen = (tuple(sizes), relative_strides(sizes, strides))
        known = self.tensors.get(name, seen)
        if len(known[0]) != len(sizes):
            known = ((None,) * len(sizes), (None,) * len(sizes))
        self.tensors[name] = joined = (_join(known[0], seen[0]), _join(known[1], seen[1]))
        allowed = self.dynamic is not False
        varied = [tuple(allowed and fact is None for fact in facts) for facts in joined]
        return varied[0], varied[1]


def relative_strides(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int | str, ...]:
    """The strides; those that follow from the next inner dimension say so: what is contiguous stays so."""
    order = sorted(range(len(sizes)), key=lambda k: (strides[k], -k))
    facts: dict[int, int | str] = {}
    for place, k in enumerate(order):
        inner = order[place - 1] if place else None
        follows = inner is not None and strides[k] not in (0, 1) and strides[k] == sizes[inner] * strides[inner]
        facts[k] = f"S({inner})" if follows else strides[k]
    return tuple(facts[k] for k in range(len(sizes)))


def joined(one: FrameProfile, other: FrameProfile) -> FrameProfile:
    """What two profiles of one frame point have seen together; `dynamic` is that of the first."""
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
    """What is known, for readers: per source its sizes, with `?` for what varies."""
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
