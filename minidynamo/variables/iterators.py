"""Owns the trackers of iterators: a position in something that is being looped over.

It does not advance them; `tracer/handlers/iterators.py` does.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import DictKey, DictVariable, SequenceVariable, SetVariable

_LIST_ITERATOR: type = type(iter([]))


@dataclass(eq=False)
class SequenceIterator(VariableTracker):
    """An iterator over a sequence; it sees changes of a list while it runs, as Python's does.

    `sequence` is a list or a tuple from outside, or the items of what does not change; `()` when it is exhausted.
    `begun` tells how often a deque had been changed when the loop began; from then on it must not be.
    """

    sequence: SequenceVariable | Sequence[VariableTracker]
    position: int = 0
    cls: type = _LIST_ITERATOR
    begun: int | None = None

    @property
    def python_type(self) -> type:
        return self.cls


class _NoItems:
    def __getitem__(self, position: int) -> int:
        raise IndexError


NO_ITEMS: Any = _NoItems()
BY_INDEX: type = type(iter(NO_ITEMS))


@dataclass(eq=False)
class IndexIterator(VariableTracker):
    """iter(obj) or reversed(obj) of an object with `__getitem__` alone, about to ask it for `position`.

    `sequence` is None when it is exhausted; `cls` is `BY_INDEX` or `reversed`.
    """

    sequence: VariableTracker | None
    position: int
    cls: type

    @property
    def python_type(self) -> type:
        return self.cls


@dataclass(eq=False)
class DictIterator(VariableTracker):
    """An iterator over a dict or over a view of `kind` of it, or over a set: it must not see other keys.

    `keys` are those that it had when the loop began, in the order of the loop; `()` when it is exhausted. `begun` says
    how often a set had been changed then.
    """

    mapping: DictVariable | SetVariable
    kind: str
    keys: tuple[DictKey, ...]
    position: int = 0
    is_reversed: bool = False
    begun: int = 0

    @property
    def python_type(self) -> type:
        if isinstance(self.mapping, SetVariable):
            return type(iter(set()))
        plain: Any = collections.OrderedDict() if self.mapping.cls is collections.OrderedDict else {}
        view = getattr(plain, self.kind)()
        return type(reversed(view) if self.is_reversed else iter(view))


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


@dataclass(eq=False)
class ChainIterator(VariableTracker):
    """itertools.chain: `iterables` is an iterator over what is chained, `current` the one that gives items now."""

    iterables: VariableTracker
    current: VariableTracker | None = None

    @property
    def python_type(self) -> type:
        return itertools.chain


@dataclass(eq=False)
class SliceIterator(VariableTracker):
    """itertools.islice: `iterator` has given `position` items, the one at `wanted` comes next.

    `iterator` is None when it is exhausted, `stop` is None when there is no end.
    """

    iterator: VariableTracker | None
    wanted: int
    stop: int | None
    step: int
    position: int = 0

    @property
    def python_type(self) -> type:
        return itertools.islice


@dataclass(eq=False)
class LibraryIterator(VariableTracker):
    """An iterator of the class `cls` that `make(*args, **kwargs)` gives, played by `iterator`, which its twin gave.

    It can be made again as long as it has not started, or, where nothing can tell that it is made twice, and moved to
    its place: then `taken` counts the items that it has given.
    """

    cls: type
    iterator: VariableTracker
    make: Callable[..., Any]
    args: tuple[VariableTracker, ...] = ()
    kwargs: dict[str, VariableTracker] = field(default_factory=dict)
    started: bool = False
    taken: int | None = None

    @property
    def python_type(self) -> type:
        return self.cls

    @property
    def is_lost(self) -> bool:
        """Whether nothing but what plays it is left."""
        return self.started and self.taken is None
