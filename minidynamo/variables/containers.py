"""Owns the trackers of lists, tuples, dicts, sets and slices.

Handlers change mutable containers in place and record the change in the side-effect journal. A tracker holds the
present contents, not the history: slots with trackers or lazy values. A read by index, key or iteration realizes a
slot; the methods named `lazy...` move slots without reading. `tracer/lazy/` has the contents of external containers.
"""

from __future__ import annotations

import types
import typing
from abc import abstractmethod
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence, Set
from dataclasses import field
from typing import Any, Generic, SupportsIndex, TypeVar, overload

from minidynamo.core.records import record
from minidynamo.variables.base import OF_CLS, VariableTracker


class Slots(MutableSequence[VariableTracker]):
    """The items of a sequence."""

    def __init__(self, items: Iterable[VariableTracker] = ()) -> None:
        self._items = [*items]

    def __repr__(self) -> str:
        return repr(self._items)

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: SupportsIndex) -> VariableTracker: ...

    @overload
    def __getitem__(self, index: slice[Any, Any, Any]) -> list[VariableTracker]: ...

    def __getitem__(self, index: SupportsIndex | slice[Any, Any, Any]) -> VariableTracker | list[VariableTracker]:
        if isinstance(index, slice):
            return [item.realize() for item in self._items[index]]
        return self._items[index].realize()

    def lazy_at(self, index: int) -> VariableTracker:
        """Returns the item at an index, maybe lazy."""
        return self._items[index].realized()

    def lazy_slice(self, index: slice[Any, Any, Any]) -> list[VariableTracker]:
        """Returns the items of a slice, maybe lazy."""
        return [item.realized() for item in self._items[index]]

    def lazy(self) -> list[VariableTracker]:
        """Returns all items, maybe lazy."""
        return self.lazy_slice(slice(None))

    def lazy_pop(self, index: int) -> VariableTracker:
        """Removes and returns the item at an index, maybe lazy."""
        item = self.lazy_at(index)
        del self[index]
        return item

    def __setitem__(self, index: Any, value: Any) -> None:
        self._items[index] = value

    def __delitem__(self, index: SupportsIndex | slice[Any, Any, Any]) -> None:
        del self._items[index]

    def insert(self, index: SupportsIndex, value: VariableTracker) -> None:
        """Inserts a value before `index`."""
        self._items.insert(index, value)

    def clear(self) -> None:
        """Removes all items."""
        self._items.clear()

    def reverse(self) -> None:
        """Reverses the order."""
        self._items.reverse()


T = TypeVar("T")


class _Contents(Generic[T]):
    """The field `items` of a tracker: of class `kind`, and converted by `make` when set to another value."""

    def __init__(self, kind: type[Any], make: Callable[[Any], T]) -> None:
        self._kind, self._make = kind, make

    def __get__(self, owner: VariableTracker | None, cls: type) -> T:
        if owner is None:
            raise AttributeError  # so that the field has no default
        found: T = owner.__dict__["items"]
        return found

    def __set__(self, owner: VariableTracker, items: Any) -> None:
        owner.__dict__["items"] = items if isinstance(items, self._kind) else self._make(items)


@record(eq=False)
class SequenceVariable(VariableTracker):
    """A sequence with one tracker per element."""

    python_type = OF_CLS
    items: _Contents[Slots] = _Contents(Slots, Slots)
    #: The exact class (a namedtuple, torch.Size, ...).
    cls: type = tuple


@record(eq=False)
class ListVariable(SequenceVariable):
    """A list or deque."""

    cls: type = list
    #: The elements on entry, if the list is an input of the graph.
    original: tuple[VariableTracker, ...] | None = None
    #: The maximal length of a deque.
    maxlen: int | None = None
    #: How often elements were added or removed.
    changes: int = 0


@record(eq=False)
class TupleVariable(SequenceVariable):
    """A tuple, torch.Size or plain namedtuple."""

    #: The tuple object, if it is a literal or is kept alive elsewhere.
    real: tuple[Any, ...] | None = None


def is_plain_namedtuple(cls: type) -> bool:
    """Returns whether instances of a tuple class are only their items, with names for the items.

    An instance with a dictionary has attributes of its own. A class with special methods of its own decides how its
    instances behave. Instances of both kinds are tracked as objects with a tuple as `storage`.
    """
    if not hasattr(cls, "_fields") or cls.__dictoffset__:
        return False
    bases = [base for base in cls.__mro__ if base not in (tuple, object, typing.Generic)]
    return not any(_is_own_method(name, found) for base in bases for name, found in vars(base).items())


def _is_own_method(name: str, found: object) -> bool:
    """Returns whether a special method was not generated by `collections.namedtuple`, and may change how an instance
    behaves."""
    if not name.startswith("__") or name in ("__doc__", "__class_getitem__", "__init_subclass__"):
        return False
    function = found.__func__ if isinstance(found, staticmethod) else found
    if not isinstance(function, types.FunctionType):
        return found is None or hasattr(type(found), "__get__")
    module = str(function.__globals__.get("__name__"))
    return module != "collections" and not module.startswith("namedtuple_")


@record(frozen=True)
class DictKey:
    """A hashable stand-in for a tracked key."""

    #: The constant itself, or the identity of the tracker.
    token: Hashable
    variable: VariableTracker = field(compare=False)

    def __hash__(self) -> int:
        return hash(self.token)  # keys that collide in the program's dict collide here, too


class Entries(MutableMapping[DictKey, VariableTracker]):
    """The entries of a dict."""

    @abstractmethod
    def lazy_at(self, key: DictKey) -> VariableTracker:
        """Returns the value under a key, maybe lazy; raises KeyError for an absent key."""

    def __getitem__(self, key: DictKey) -> VariableTracker:
        return self.lazy_at(key).realize()

    def lazy(self) -> dict[DictKey, VariableTracker]:
        """Returns all entries, maybe lazy."""
        return {key: self.lazy_at(key) for key in self}

    def __reversed__(self) -> Iterator[DictKey]:
        return iter([*self][::-1])


class NewEntries(Entries):
    """The entries of a dict that the program has created."""

    def __init__(self, entries: Mapping[DictKey, VariableTracker]) -> None:
        self._entries = {**entries}

    def __repr__(self) -> str:
        return repr(self._entries)

    def lazy_at(self, key: DictKey) -> VariableTracker:
        return self._entries[key].realized()

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[DictKey]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __setitem__(self, key: DictKey, value: VariableTracker) -> None:
        self._entries[key] = value

    def __delitem__(self, key: DictKey) -> None:
        del self._entries[key]

    def clear(self) -> None:
        """Removes all entries."""
        self._entries.clear()


@record(eq=False)
class DictVariable(VariableTracker):
    """A dict (or OrderedDict, defaultdict, mappingproxy), in insertion order."""

    python_type = OF_CLS
    items: _Contents[Entries] = _Contents(Entries, NewEntries)
    cls: type = dict
    default_factory: VariableTracker | None = None
    #: The `__dict__` of an external OrderedDict, which can have attributes of its own.
    attributes: dict[str, Any] | None = None


def storage_class(cls: type) -> type:
    """Returns the built-in class whose methods work on the contents of an instance of `cls`, a dict class."""
    return next(base for base in cls.__mro__ if base in (defaultdict, OrderedDict, dict, types.MappingProxyType))


@record(eq=False)
class SetVariable(VariableTracker):
    """A set or frozenset. `items` is in insertion order; Python's iteration order depends on the history of the set."""

    python_type = OF_CLS
    items: MutableMapping[DictKey, Any]
    cls: type = set
    #: A set with equal items in the iteration order of the program's set: the external set, or a set with the same
    #: changes. None if the order is unknown.
    real: Set[Any] | None = None
    #: The number of changes.
    changes: int = 0
    #: Whether the set is the object `real` itself.
    is_literal: bool = False


@record(eq=False)
class DictViewVariable(VariableTracker):
    """The result of `d.keys()`, `d.values()` or `d.items()`."""

    mapping: DictVariable
    #: The name of the method.
    kind: str

    @property
    def python_type(self) -> type:
        plain: dict[None, None] = OrderedDict() if self.mapping.cls is OrderedDict else {}
        return type(getattr(plain, self.kind)())


@record(eq=False)
class SliceVariable(VariableTracker):
    """A slice with at least one part that is not a constant."""

    python_type = slice
    start: VariableTracker
    stop: VariableTracker
    step: VariableTracker
