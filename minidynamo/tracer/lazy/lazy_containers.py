"""Owns containers that hold lazy values: an item is realized when it is read.

Code that stores values without reading uses `sequence_items` and `mapping_items`; code that takes values out without
reading uses `lazy_at`, `lazy_items`, `unpack_lazy` and `next_lazy`. All other code reads `items` and gets realized
values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any, SupportsIndex, overload

from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.lazy.lazy_dicts import LazyDict
from minidynamo.tracer.lazy.lazy_lists import LazyList
from minidynamo.tracer.lazy.lazy_tuples import LazyTuple
from minidynamo.tracer.lazy.namespaces import NamespaceItems
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.copies import fresh_copy
from minidynamo.tracer.records.side_effects import Advanced
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import (
    DictKey,
    DictVariable,
    ListVariable,
    SequenceVariable,
    SetStep,
    SetVariable,
    TupleVariable,
)
from minidynamo.variables.objects import LazyVariable, ObjectVariable


class LazyItems(MutableSequence[VariableTracker]):
    """The items of a container that the program has created. Items are lazy until the first read."""

    def __init__(self, tx: Tracer, items: Iterable[VariableTracker]) -> None:
        self._tx = tx
        self._items = [*items]

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: SupportsIndex) -> VariableTracker: ...

    @overload
    def __getitem__(self, index: slice[Any, Any, Any]) -> list[VariableTracker]: ...

    def __getitem__(self, index: SupportsIndex | slice[Any, Any, Any]) -> VariableTracker | list[VariableTracker]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self._items))[index]]
        item = self._items[index] = self._tx.realize(self._items[index])
        return item

    def lazy_at(self, index: int) -> VariableTracker:
        """Returns the item at an index, maybe lazy."""
        item = self._items[index] = self._tx.realized(self._items[index])
        return item

    def lazy_items(self) -> list[VariableTracker]:
        """Returns all items; an item that was never read, here or elsewhere, is lazy."""
        self._items = [self._tx.realized(item) for item in self._items]
        return self._items

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


class LazyTable(MutableMapping[DictKey, VariableTracker]):
    """The contents of a dict that the program has created. Values are lazy until the first read."""

    def __init__(self, tx: Tracer, items: Mapping[DictKey, VariableTracker]) -> None:
        self._tx = tx
        self._items = {**items}

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[DictKey]:
        return iter(self._items)

    def __reversed__(self) -> Iterator[DictKey]:
        return reversed(self._items)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __getitem__(self, key: DictKey) -> VariableTracker:
        value = self._items[key] = self._tx.realize(self._items[key])
        return value

    def lazy_at(self, key: DictKey) -> VariableTracker:
        """Returns the value under a key, maybe lazy."""
        value = self._items[key] = self._tx.realized(self._items[key])
        return value

    def lazy_items(self) -> dict[DictKey, VariableTracker]:
        """Returns all entries; a value that was never read, here or elsewhere, is lazy."""
        for key, value in [*self._items.items()]:
            if (known := self._tx.realized(value)) is not value:
                self._items[key] = known  # in place: a caller may be iterating
        return self._items

    def __setitem__(self, key: DictKey, value: VariableTracker) -> None:
        self._items[key] = value

    def __delitem__(self, key: DictKey) -> None:
        del self._items[key]

    def clear(self) -> None:
        """Removes all entries."""
        self._items.clear()


# Storing


def sequence_items(tx: Tracer, items: list[VariableTracker]) -> MutableSequence[VariableTracker]:
    """Returns the items of a new sequence: a `LazyItems` if an item is lazy."""
    return LazyItems(tx, items) if any(isinstance(item, LazyVariable) for item in items) else items


def mapping_items(tx: Tracer, items: dict[DictKey, VariableTracker]) -> MutableMapping[DictKey, VariableTracker]:
    """Returns the contents of a new dict: a `LazyTable` if a value is lazy."""
    return LazyTable(tx, items) if any(isinstance(value, LazyVariable) for value in items.values()) else items


def to_store(tx: Tracer, container: ListVariable | DictVariable, value: VariableTracker) -> VariableTracker:
    """Returns a value to store in a container. For a lazy value, prepares the container to hold it, or realizes the
    value."""
    if not isinstance(value, LazyVariable):
        return value
    kind = type(container.items)
    if kind is list and isinstance(container, ListVariable):
        container.items = LazyItems(tx, container.items)
    elif kind is dict and isinstance(container, DictVariable):
        container.items = LazyTable(tx, container.items)
    elif not issubclass(kind, LazyItems | LazyTable | LazyList | LazyDict | NamespaceItems):
        return tx.realize(value)
    return value


def all_to_store(
    tx: Tracer, container: ListVariable | DictVariable, values: Iterable[VariableTracker]
) -> list[VariableTracker]:
    """Returns many values to store in a container."""
    return [to_store(tx, container, value) for value in values]


def store_entries(tx: Tracer, made: DictVariable, entries: Mapping[DictKey, VariableTracker]) -> None:
    """Does `made.update(entries)` for values that may be lazy."""
    for key, value in entries.items():
        value = to_store(tx, made, value)  # may replace `made.items`
        made.items[key] = value


# Reading without realizing


def lazy_at(items: Any, index: int) -> VariableTracker:
    """Returns the item of a sequence whose length is known to be sufficient."""
    return items.lazy_at(index) if isinstance(items, LazyTuple | LazyList | LazyItems) else items[index]


def lazy_item(items: Any, index: int) -> VariableTracker:
    """Returns `items[index]` of any sequence; raises IndexError if the sequence is shorter."""
    if isinstance(items, LazyTuple | LazyList):
        item = items.find_lazy(index)
        return items[index] if item is None else item
    return lazy_at(items, index)


def lazy_slice(items: Any, index: slice) -> list[VariableTracker]:
    """Returns `items[index]` for a slice."""
    return items.lazy_slice(index) if isinstance(items, LazyList | LazyTuple) else [*lazy_items(items)[index]]


def pop_item(items: Any, index: int) -> VariableTracker:
    """Returns `items.pop(index)`."""
    item = lazy_item(items, index)
    del items[index]
    return item


def lazy_entry(items: Any, key: DictKey) -> VariableTracker:
    """Returns the value of a dict under a key that is known to be present."""
    return items.lazy_at(key) if isinstance(items, LazyDict | LazyTable | NamespaceItems) else items[key]


def lazy_items(items: Sequence[VariableTracker]) -> Sequence[VariableTracker]:
    """Returns all items of a sequence."""
    if isinstance(items, LazyTuple):
        return items.lazy()
    if isinstance(items, LazyList):
        return [items.lazy_at(place) for place in range(len(items))]
    return items.lazy_items() if isinstance(items, LazyItems) else items


def lazy_entries(items: Mapping[DictKey, VariableTracker]) -> Mapping[DictKey, VariableTracker]:
    """Returns all entries of a dict."""
    if isinstance(items, LazyDict | NamespaceItems):
        return {key: items.lazy_at(key) for key in items}
    return items.lazy_items() if isinstance(items, LazyTable) else items


def exact_copy(tx: Tracer, storage: VariableTracker) -> VariableTracker:
    """Returns the result of an operation that changes nothing of an instance of a subclass: a new object of the builtin
    class.

    For mutable values, the result is `storage` itself.
    """
    if isinstance(storage, ConstantVariable):
        return ConstantVariable(fresh_copy(storage.value))
    if isinstance(storage, TupleVariable):
        return TupleVariable(sequence_items(tx, [*lazy_items(storage.items)]), storage.cls)
    if isinstance(storage, SetVariable) and storage.cls is frozenset:
        return SetVariable({**storage.items}, frozenset, creation=SetStep("union", (storage,)))
    return storage


def unpack_mapping(tx: Tracer, obj: VariableTracker) -> Mapping[DictKey, VariableTracker]:
    """Returns the entries of a mapping, `{**obj}`; values that were never read are lazy."""
    made = obj
    if type(obj) is not DictVariable or obj.cls is not dict:
        is_mapping = tx.call(hasattr, [obj, ConstantVariable("keys")])
        if isinstance(is_mapping, ConstantVariable) and not is_mapping.value:  # `dict` also accepts pairs
            tx.raises(TypeError(f"'{tx.realize(obj).python_type.__name__}' object is not a mapping"))
        made = tx.call(dict, [obj])
    assert isinstance(made, DictVariable)
    return {**lazy_entries(made.items)}


def unpack_lazy(tx: Tracer, obj: VariableTracker) -> list[VariableTracker]:
    """Returns `list(obj)`; items that were never read are lazy."""
    if isinstance(obj, SequenceVariable):
        return [*lazy_items(obj.items)]
    iterator = tx.call(iter, [obj])
    items = []
    while (item := next_lazy(tx, iterator)) is not None:
        items.append(item)
    return items


def next_lazy(tx: Tracer, iterator: VariableTracker) -> VariableTracker | None:
    """Returns the next item of an iterator, maybe lazy; None when the iterator is exhausted."""
    advance = registry.ADVANCE.get(type(iterator))
    hidden = isinstance(iterator, ObjectVariable) and iterator.source is not None
    if advance is None or hidden:
        tx.break_graph(
            "MD217",
            f"iteration over an external {iterator.python_type.__name__}",
            why="An iterator hides its position; each step runs eagerly and the loop's body is captured once.",
        )
    tx.side_effects.on_effect(Advanced(iterator))
    return advance(tx, iterator)
