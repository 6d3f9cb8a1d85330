"""Owns what containers hold that the program has only moved there: it is looked at when it is read.

Who puts values together without looking at them holds them by `hold` and `hold_named`, who takes them out again by
`lazy_at`, `lazy_items`, `unpack_lazy` and `next_lazy`. Everybody else reads `items` and meets values that are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any, SupportsIndex, overload

from minidynamo.tracer.lazy.lazy_dicts import LazyDict
from minidynamo.tracer.lazy.lazy_lists import LazyList
from minidynamo.tracer.lazy.lazy_tuples import LazyTuple
from minidynamo.tracer.lazy.lazy_value import realize, realized
from minidynamo.tracer.lazy.namespaces import NamespaceItems
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.copies import anew
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
    """The items of a container that the program has made, some of them unread until somebody reads them."""

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
        item = self._items[index] = realize(self._tx, self._items[index])
        return item

    def lazy_at(self, index: int) -> VariableTracker:
        """The item at an index, for who only moves it."""
        item = self._items[index] = realized(self._tx, self._items[index])
        return item

    def lazy_items(self) -> list[VariableTracker]:
        """All items; those that nobody has looked at, here or elsewhere, are unread."""
        self._items = [realized(self._tx, item) for item in self._items]
        return self._items

    def __setitem__(self, index: Any, value: Any) -> None:
        self._items[index] = value

    def __delitem__(self, index: SupportsIndex | slice[Any, Any, Any]) -> None:
        del self._items[index]

    def insert(self, index: SupportsIndex, value: VariableTracker) -> None:
        """Put a value in front of the one at `index`."""
        self._items.insert(index, value)

    def clear(self) -> None:
        """Drop everything."""
        self._items.clear()

    def reverse(self) -> None:
        """Turn the order round."""
        self._items.reverse()


class LazyTable(MutableMapping[DictKey, VariableTracker]):
    """The contents of a dict that the program has made, some values unread until somebody reads them."""

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
        value = self._items[key] = realize(self._tx, self._items[key])
        return value

    def lazy_at(self, key: DictKey) -> VariableTracker:
        """What is under a key, for who only moves it."""
        value = self._items[key] = realized(self._tx, self._items[key])
        return value

    def lazy_items(self) -> dict[DictKey, VariableTracker]:
        """All entries; values that nobody has looked at, here or elsewhere, are unread."""
        for key, value in [*self._items.items()]:
            if (known := realized(self._tx, value)) is not value:
                self._items[key] = known  # in this very dict: somebody may be looking for a key in it
        return self._items

    def __setitem__(self, key: DictKey, value: VariableTracker) -> None:
        self._items[key] = value

    def __delitem__(self, key: DictKey) -> None:
        del self._items[key]

    def clear(self) -> None:
        """Drop everything."""
        self._items.clear()


# Putting in


def hold(tx: Tracer, items: list[VariableTracker]) -> MutableSequence[VariableTracker]:
    """The items of a new sequence."""
    return LazyItems(tx, items) if any(isinstance(item, LazyVariable) for item in items) else items


def hold_named(tx: Tracer, items: dict[DictKey, VariableTracker]) -> MutableMapping[DictKey, VariableTracker]:
    """The contents of a new dict."""
    return LazyTable(tx, items) if any(isinstance(value, LazyVariable) for value in items.values()) else items


def to_store(tx: Tracer, container: ListVariable | DictVariable, value: VariableTracker) -> VariableTracker:
    """A value as it is put into a container, which gets ready to hold what is unread."""
    if not isinstance(value, LazyVariable):
        return value
    kind = type(container.items)
    if kind is list and isinstance(container, ListVariable):
        container.items = LazyItems(tx, container.items)
    elif kind is dict and isinstance(container, DictVariable):
        container.items = LazyTable(tx, container.items)
    elif not issubclass(kind, LazyItems | LazyTable | LazyList | LazyDict | NamespaceItems):
        return realize(tx, value)
    return value


def all_to_store(
    tx: Tracer, container: ListVariable | DictVariable, values: Iterable[VariableTracker]
) -> list[VariableTracker]:
    """The same for many values."""
    return [to_store(tx, container, value) for value in values]


def store_entries(tx: Tracer, made: DictVariable, entries: Mapping[DictKey, VariableTracker]) -> None:
    """`made.update(entries)`, of values that may be unread."""
    for key, value in entries.items():
        value = to_store(tx, made, value)  # which may give the dict another table
        made.items[key] = value


# Taking out


def lazy_at(items: Any, index: int) -> VariableTracker:
    """The item of a sequence that is known to be that long."""
    return items.lazy_at(index) if isinstance(items, LazyTuple | LazyList | LazyItems) else items[index]


def lazy_item(items: Any, index: int) -> VariableTracker:
    """`items[index]` of any sequence; raises IndexError where it is shorter."""
    if isinstance(items, LazyTuple | LazyList):
        item = items.unread_at(index)
        return items[index] if item is None else item
    return lazy_at(items, index)


def lazy_slice(items: Any, index: slice) -> list[VariableTracker]:
    """`items[index]` for a slice."""
    return items.lazy_slice(index) if isinstance(items, LazyList | LazyTuple) else [*lazy_items(items)[index]]


def take_out(items: Any, index: int) -> VariableTracker:
    """`items.pop(index)`."""
    item = lazy_item(items, index)
    del items[index]
    return item


def moved_under(items: Any, key: DictKey) -> VariableTracker:
    """What a dict that has the key holds there."""
    return items.lazy_at(key) if isinstance(items, LazyDict | LazyTable | NamespaceItems) else items[key]


def lazy_items(items: Sequence[VariableTracker]) -> Sequence[VariableTracker]:
    """All items of a sequence."""
    if isinstance(items, LazyTuple):
        return items.lazy()
    if isinstance(items, LazyList):
        return [items.lazy_at(place) for place in range(len(items))]
    return items.lazy_items() if isinstance(items, LazyItems) else items


def entries_as_moved(items: Mapping[DictKey, VariableTracker]) -> Mapping[DictKey, VariableTracker]:
    """All entries of a dict."""
    if isinstance(items, LazyDict | NamespaceItems):
        return {key: items.lazy_at(key) for key in items}
    return items.lazy_items() if isinstance(items, LazyTable) else items


def exact_copy(tx: Tracer, storage: VariableTracker) -> VariableTracker:
    """What an operation gives that changes nothing of an instance of a subclass: another object, of the class below.

    What can be changed gives itself instead.
    """
    if isinstance(storage, ConstantVariable):
        return ConstantVariable(anew(storage.value))
    if isinstance(storage, TupleVariable):
        return TupleVariable(hold(tx, [*lazy_items(storage.items)]), storage.cls)
    if isinstance(storage, SetVariable) and storage.cls is frozenset:
        return SetVariable({**storage.items}, frozenset, made=SetStep("union", (storage,)))
    return storage


def unpack_mapping(tx: Tracer, obj: VariableTracker) -> Mapping[DictKey, VariableTracker]:
    """The entries of a mapping, `{**obj}`, values that nobody has looked at unread."""
    made = obj
    if type(obj) is not DictVariable or obj.cls is not dict:
        is_mapping = tx.call(hasattr, [obj, ConstantVariable("keys")])
        if isinstance(is_mapping, ConstantVariable) and not is_mapping.value:  # `dict` would take pairs, too
            tx.raises(TypeError(f"'{realize(tx, obj).python_type.__name__}' object is not a mapping"))
        made = tx.call(dict, [obj])
    assert isinstance(made, DictVariable)
    return {**entries_as_moved(made.items)}


def unpack_lazy(tx: Tracer, obj: VariableTracker) -> list[VariableTracker]:
    """`list(obj)`, items that nobody has looked at unread."""
    if isinstance(obj, SequenceVariable):
        return [*lazy_items(obj.items)]
    iterator = tx.call(iter, [obj])
    items = []
    while (item := next_lazy(tx, iterator)) is not None:
        items.append(item)
    return items


def next_lazy(tx: Tracer, iterator: VariableTracker) -> VariableTracker | None:
    """The next item of an iterator, maybe unread; None when it is exhausted."""
    advance = registry.ADVANCE.get(type(iterator))
    hidden = isinstance(iterator, ObjectVariable) and iterator.source is not None
    if advance is None or hidden:
        tx.break_graph(
            "MD217",
            f"iteration over a {iterator.python_type.__name__} that was made elsewhere",
            why="An iterator hides its position; each step runs as written and the loop's body is captured once.",
        )
    tx.side_effects.on_effect(Advanced(iterator))
    return advance(tx, iterator)
