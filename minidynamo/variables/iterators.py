"""Owns the trackers of iterators: a position in something that is being looped over.

It does not advance them; `tracer/handlers/iterators.py` does.
"""

from __future__ import annotations

from dataclasses import dataclass

from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import DictVariable, ListVariable


@dataclass(eq=False)
class SequenceIterator(VariableTracker):
    """An iterator over a sequence; it sees changes of a list while it runs, as Python's does.

    `sequence` is a ListVariable, or a tuple of the items for everything else. `mapping` is the dict that is looped
    over: like Python's, the loop raises when its size changes.
    """

    sequence: ListVariable | tuple[VariableTracker, ...]
    position: int = 0
    cls: type = type(iter([]))
    mapping: DictVariable | None = None

    @property
    def python_type(self) -> type:
        return self.cls


@dataclass(eq=False)
class ZipIterator(VariableTracker):
    """zip(*iterators)."""

    iterators: list[VariableTracker]
    strict: bool = False

    @property
    def python_type(self) -> type:
        return zip


@dataclass(eq=False)
class EnumerateIterator(VariableTracker):
    """enumerate(iterator), about to give `count`."""

    iterator: VariableTracker
    count: int = 0

    @property
    def python_type(self) -> type:
        return enumerate


@dataclass(eq=False)
class MapIterator(VariableTracker):
    """map(function, *iterators), or filter(function, iterator) when `filtering`."""

    function: VariableTracker
    iterators: list[VariableTracker]
    filtering: bool = False

    @property
    def python_type(self) -> type:
        return filter if self.filtering else map
