"""Owns the iterator that takes the place of a dictionary's in a loop over modules that a graph break cuts.

It only iterates; `tracer/capture/module_loops.py` decides when it is used, and reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class ModuleIterator(Iterator[Any]):
    """An iterator over the values of a dictionary from a position on. Unlike Python's, its state can be read."""

    def __init__(self, table: dict[str, Any], position: int) -> None:
        self.table = table
        self.length = len(table)
        self.position = position

    def __next__(self) -> Any:
        if len(self.table) != self.length:
            raise RuntimeError("dictionary changed size during iteration")
        if self.position >= self.length:
            raise StopIteration
        self.position += 1
        return [*self.table.values()][self.position - 1]
