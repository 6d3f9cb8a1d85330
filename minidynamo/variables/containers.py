"""Owns the trackers of lists, tuples, dicts, sets and slices.

Mutable ones are changed in place by handlers, which also tell the side-effect journal; the trackers hold the current
contents, not the history. Those from outside read theirs when they are asked for (`tracer/outside_*.py`).
"""

from __future__ import annotations

import itertools
import types
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, MutableMapping, MutableSequence, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from minidynamo.variables.base import VariableTracker


@dataclass(eq=False)
class SequenceVariable(VariableTracker):
    """A sequence whose elements are tracked one by one. `cls` is the exact class (a namedtuple, torch.Size, ...)."""

    items: Sequence[VariableTracker]
    cls: type

    @property
    def python_type(self) -> type:
        return self.cls


@dataclass(eq=False)
class ListVariable(SequenceVariable):
    """A list (or deque). When it is an input of the graph, `original` keeps the elements it had on entry.

    `changes` counts how often elements were added or removed.
    """

    items: MutableSequence[VariableTracker]
    cls: type = list
    original: tuple[VariableTracker, ...] | None = None
    maxlen: int | None = None  # of a deque
    changes: int = 0


@dataclass(eq=False)
class TupleVariable(SequenceVariable):
    """A tuple, torch.Size or namedtuple. `real` is the object, where it is a literal or lives on otherwise."""

    cls: type = tuple
    real: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class DictKey:
    """A hashable stand-in for a tracked key. `token` is the constant itself, or the identity of the tracker."""

    token: Hashable
    variable: VariableTracker = field(compare=False)

    def __hash__(self) -> int:
        return hash(self.token)  # so that keys which meet in a dict of the program's meet here, too


class Keyword(str):
    """The name of a keyword argument whose text came in `key`, which the function may get to see again."""

    __slots__ = ("key",)
    key: DictKey

    @classmethod
    def of(cls, key: DictKey) -> str:
        """The name that a key of a spread mapping gives an argument."""
        name = cls(key.token)
        name.key = key
        return name


@dataclass(eq=False)
class DictVariable(VariableTracker):
    """A dict (or OrderedDict, defaultdict, mappingproxy), in insertion order.

    `attributes` is the `__dict__` of an OrderedDict from outside, which can have attributes of its own.
    """

    items: MutableMapping[DictKey, VariableTracker]
    cls: type = dict
    default_factory: VariableTracker | None = None
    attributes: dict[str, Any] | None = None

    @property
    def python_type(self) -> type:
        return self.cls


def storage_class(cls: type) -> type:
    """The built-in class whose methods work on the contents of an instance of `cls`, a dict class."""
    return next(base for base in cls.__mro__ if base in (defaultdict, OrderedDict, dict, types.MappingProxyType))


@dataclass(frozen=True)
class SetStep:
    """A call that makes or changes a set: `set.method(it, *operands)`, or `cls(*operands)` for the method "new".

    `time` orders the steps of all sets: operands that are sets are meant as they were then.
    """

    method: str
    operands: tuple[VariableTracker, ...] = ()
    time: int = field(default_factory=itertools.count().__next__, compare=False)


@dataclass(eq=False)
class SetVariable(VariableTracker):
    """A set or frozenset, in insertion order, which is not the order in which Python gives the items.

    That hangs on how the set came to be: `made` (None: empty, or from outside) and what has changed it since, `steps`.
    `real` is a set that gives equal items in the order in which the program's own would: the one from outside, or one
    made now by the same steps. None when that is not known. `changes` counts the changes. `is_operand`: other sets have
    been made or changed by this one. `is_literal`: it is `real`.
    """

    items: MutableMapping[DictKey, None]
    cls: type = set
    real: Set[Any] | None = None
    made: SetStep | None = None
    steps: list[SetStep] = field(default_factory=list)
    changes: int = 0
    is_operand: bool = False
    is_literal: bool = False

    @property
    def python_type(self) -> type:
        return self.cls


@dataclass(eq=False)
class DictViewVariable(VariableTracker):
    """`d.keys()`, `d.values()` or `d.items()`; `kind` is that method's name."""

    mapping: DictVariable
    kind: str

    @property
    def python_type(self) -> type:
        plain: dict[None, None] = OrderedDict() if self.mapping.cls is OrderedDict else {}
        return type(getattr(plain, self.kind)())


@dataclass(eq=False)
class SliceVariable(VariableTracker):
    """A slice with at least one part that is not a constant."""

    start: VariableTracker
    stop: VariableTracker
    step: VariableTracker

    @property
    def python_type(self) -> type:
        return slice
