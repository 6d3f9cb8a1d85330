"""Owns the trackers of iterators: a position in an iterable.

Advancing is in `tracer/handlers/iterators.py`.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable
from dataclasses import field
from typing import Any

from minidynamo.core.records import record
from minidynamo.variables.base import OF_CLS, VariableTracker
from minidynamo.variables.containers import DictKey, DictVariable, SequenceVariable, SetVariable, Slots

_LIST_ITERATOR: type = type(iter([]))


@record(eq=False)
class SequenceIterator(VariableTracker):
    """An iterator over a sequence. Like Python's, it sees changes of a list during the loop."""

    python_type = OF_CLS
    #: A list or an external tuple, or the items of an immutable iterable; no items when exhausted.
    sequence: SequenceVariable | Slots
    position: int = 0
    cls: type = _LIST_ITERATOR
    #: The value of `ListVariable.changes` when a loop over a deque began; a later change is an error.
    changes_at_start: int | None = None


class _NoItems:
    def __getitem__(self, position: int) -> int:
        raise IndexError


NO_ITEMS: Any = _NoItems()
BY_INDEX: type = type(iter(NO_ITEMS))


@record(eq=False)
class IndexIterator(VariableTracker):
    """The iterator `iter(obj)` or `reversed(obj)` of an object that has only `__getitem__`."""

    python_type = OF_CLS
    #: None when exhausted.
    sequence: VariableTracker | None
    #: The next index.
    position: int
    #: `BY_INDEX` or `reversed`.
    cls: type


@record(eq=False)
class DictIterator(VariableTracker):
    """An iterator over a dict, a set, or a dict view of `kind`. A change of the keys during the loop is an error."""

    mapping: DictVariable | SetVariable
    kind: str
    #: The keys when the loop began, in the order of the loop; `()` when exhausted.
    keys: tuple[DictKey, ...]
    position: int = 0
    is_reversed: bool = False
    #: The value of `SetVariable.changes` when the loop began.
    changes_at_start: int = 0
    #: Whether only the stack of a frame that is cut holds it (see `tracer/capture/module_loops.py`).
    only_on_stack: bool = False
    #: Whether it continues the loop of a frame that was cut.
    is_opened: bool = False

    @property
    def python_type(self) -> type:
        if isinstance(self.mapping, SetVariable):
            return type(iter(set()))
        plain: Any = collections.OrderedDict() if self.mapping.cls is collections.OrderedDict else {}
        view = getattr(plain, self.kind)()
        return type(reversed(view) if self.is_reversed else iter(view))


@record(eq=False)
class ZipIterator(VariableTracker):
    """The iterator `zip(*iterators)`."""

    python_type = zip
    iterators: list[VariableTracker]
    strict: bool = False


@record(eq=False)
class EnumerateIterator(VariableTracker):
    """The iterator `enumerate(iterator)`."""

    python_type = enumerate
    iterator: VariableTracker
    #: The next index.
    count: int = 0


@record(eq=False)
class MapIterator(VariableTracker):
    """The iterator `map(function, *iterators)`, or `filter(function, iterator)` if `filtering`."""

    function: VariableTracker
    iterators: list[VariableTracker]
    filtering: bool = False

    @property
    def python_type(self) -> type:
        return filter if self.filtering else map


@record(eq=False)
class ChainIterator(VariableTracker):
    """The iterator `itertools.chain(*iterables)`."""

    python_type = itertools.chain
    #: An iterator over the chained iterables.
    iterables: VariableTracker
    #: The iterator over the present iterable.
    current: VariableTracker | None = None


@record(eq=False)
class SliceIterator(VariableTracker):
    """The iterator `itertools.islice(...)`."""

    python_type = itertools.islice
    #: None when exhausted.
    iterator: VariableTracker | None
    #: The index of the next item to yield.
    next_index: int
    #: None if the slice is unbounded.
    stop: int | None
    step: int
    #: The number of items taken from `iterator`.
    position: int = 0


@record(eq=False)
class LibraryIterator(VariableTracker):
    """An iterator of a class written in C, returned by `make(*args, **kwargs)`. During capture, `iterator` supplies its
    items: the result of the polyfill of `make`.

    The residual program can call `make` before the iterator has started. If a second construction is not observable,
    the program can call `make` at any time and advance the iterator by `items_taken` items.
    """

    python_type = OF_CLS
    cls: type
    iterator: VariableTracker
    make: Callable[..., Any]
    args: tuple[VariableTracker, ...] = ()
    kwargs: dict[str, VariableTracker] = field(default_factory=dict)
    started: bool = False
    #: The number of items taken so far; None if the iterator cannot be created again after its start.
    items_taken: int | None = None

    @property
    def is_lost(self) -> bool:
        """True if the iterator cannot be created again: only `iterator` is left."""
        return self.started and self.items_taken is None
