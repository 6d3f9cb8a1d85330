"""Owns the methods of sets and frozensets, except polyfills.

A tracked set is in insertion order, Python's set is not. A use that depends on the order of two or more items breaks
the graph, unless `tracer/calls/set_order.py` knows the order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from minidynamo.tracer.calls import set_order
from minidynamo.tracer.frames.exceptions import exception_with
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.lists import length_of, storage_of
from minidynamo.tracer.handlers.values import expect_key, none, not_implemented
from minidynamo.tracer.polyfills.containers import (
    change,
    derived,
    lookup,
    set_difference,
    set_difference_update,
    set_equal,
    set_intersection,
    set_intersection_update,
    set_issubset,
    set_issuperset,
    set_symmetric_difference,
    set_symmetric_difference_update,
    set_union,
    set_update,
    unordered_items,
)
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import as_constant
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import DictVariable, ListVariable, SetVariable, TupleVariable
from minidynamo.variables.iterators import DictIterator

SETS = (set, frozenset)


def set_items(variable: SetVariable) -> list[VariableTracker]:
    """Returns the items, for uses that do not depend on the order."""
    return [key.variable for key in variable.items]


def _unknown_order(tx: Tracer, variable: SetVariable, what: str) -> NoReturn:
    tx.break_graph(
        "MD231",
        f"{what} a set with {len(variable.items)} items",
        why="Two equal sets may iterate in different orders.",
        fix="Use a list or a dict, or sorted(...).",
    )


@registry.methods(SETS, "__len__")
def _len(tx: Tracer, self: SetVariable) -> VariableTracker:
    return length_of(tx, self.items)


@registry.methods(SETS, "__contains__")
def _contains(tx: Tracer, self: SetVariable, item: VariableTracker) -> VariableTracker:
    if isinstance(item, SetVariable) and item.cls is set:  # `{1} in {frozenset({1})}` looks for the frozenset
        item = SetVariable(dict(item.items), frozenset)
    return ConstantVariable(expect_key(tx, item) in self.items)


@registry.methods(SETS, "__iter__")
def _iter(tx: Tracer, self: SetVariable) -> VariableTracker:
    keys = set_order.ordered_keys(tx, self)
    if keys is None:
        _unknown_order(tx, self, "looping over")
    return DictIterator(self, "keys", tuple(keys), changes_at_start=self.changes)


@registry.function(unordered_items)
def _unordered_items(tx: Tracer, items: VariableTracker) -> VariableTracker:
    plain = storage_of(items)
    return ListVariable(set_items(plain) if isinstance(plain, SetVariable) else tx.unpack(items))


@registry.methods(SETS, "copy")
def _copy(tx: Tracer, self: SetVariable) -> VariableTracker:
    return self if self.cls is frozenset else _make(tx, self, self.cls)


@registry.method(set, "add")
def _add(tx: Tracer, self: SetVariable, item: VariableTracker) -> VariableTracker:
    if set_order.add(self, expect_key(tx, item)):
        tx.side_effects.contents_changed(self)
    return none()


@registry.method(set, "discard")
def _discard(tx: Tracer, self: SetVariable, item: VariableTracker) -> VariableTracker:
    if set_order.discard(self, expect_key(tx, item)):
        tx.side_effects.contents_changed(self)
    return none()


@registry.method(set, "remove")
def _remove(tx: Tracer, self: SetVariable, item: VariableTracker) -> VariableTracker:
    key = expect_key(tx, item)
    if key not in self.items:
        tx.raises(exception_with(KeyError, item))
    return _discard(tx, self, item)


@registry.method(set, "pop")
def _pop(tx: Tracer, self: SetVariable) -> VariableTracker:
    if not self.items:
        tx.raises(KeyError("pop from an empty set"), exact=True)
    key = set_order.pop(self)
    if key is None:
        _unknown_order(tx, self, "popping from")
    tx.side_effects.contents_changed(self)
    return key.variable


@registry.method(set, "clear")
def _clear(tx: Tracer, self: SetVariable) -> VariableTracker:
    set_order.clear(self)
    tx.side_effects.contents_changed(self)
    return none()


# --- operators: like the methods, but only between sets -------------------------------------------------------------


def _set_operator(polyfill: Callable[..., object], *, negate: bool = False, swap: bool = False) -> registry.Handler:
    def operate(tx: Tracer, self: SetVariable, other: VariableTracker) -> VariableTracker:
        if not isinstance(storage_of(other), SetVariable):
            return not_implemented()
        result = tx.call(polyfill, [other, self] if swap else [self, other])
        return ConstantVariable(not tx.truth(result)) if negate else result

    return operate


def _strict_comparison(polyfill: Callable[..., object]) -> registry.Handler:
    def compare(tx: Tracer, self: SetVariable, other: VariableTracker) -> VariableTracker:
        plain = storage_of(other)
        if not isinstance(plain, SetVariable):
            return not_implemented()
        if len(plain.items) == len(self.items):
            return ConstantVariable(False)
        return tx.call(polyfill, [self, other])

    return compare


def _inplace_operator(polyfill: Callable[..., object]) -> registry.Handler:
    def change(tx: Tracer, self: SetVariable, other: VariableTracker) -> VariableTracker:
        if not isinstance(storage_of(other), SetVariable):
            return not_implemented()
        tx.call(polyfill, [self, other])
        return self

    return change


for _name, _polyfill, _update in (
    ("and", set_intersection, set_intersection_update),
    ("or", set_union, set_update),
    ("sub", set_difference, set_difference_update),
    ("xor", set_symmetric_difference, set_symmetric_difference_update),
):
    registry.methods(SETS, f"__{_name}__")(_set_operator(_polyfill))
    registry.methods(SETS, f"__r{_name}__")(_set_operator(_polyfill, swap=True))
    registry.methods(SETS, f"__i{_name}__")(_inplace_operator(_update))
registry.methods(SETS, "__eq__")(_set_operator(set_equal))
registry.methods(SETS, "__ne__")(_set_operator(set_equal, negate=True))
registry.methods(SETS, "__le__")(_set_operator(set_issubset))
registry.methods(SETS, "__ge__")(_set_operator(set_issuperset))
registry.methods(SETS, "__lt__")(_strict_comparison(set_issubset))
registry.methods(SETS, "__gt__")(_strict_comparison(set_issuperset))


# --- construction -------------------------------------------------------------------------------------------------


def _make(tx: Tracer, iterable: VariableTracker | None, cls: type) -> VariableTracker:
    plain = None if iterable is None else storage_of(iterable)
    # C copies the hash table of a set (also of a subclass) and of a plain dict.
    if isinstance(plain, SetVariable) or (isinstance(plain, DictVariable) and plain is iterable and plain.cls is dict):
        # `frozenset(s)` would return the frozenset `s` itself, which may be the storage of a subclass instance here.
        method = "union" if cls is frozenset and plain.python_type is frozenset else "new"
        return set_order.set_of_call(plain.items, cls, method, [plain])
    items = [] if iterable is None else tx.unpack(iterable)
    keys = [expect_key(tx, item) for item in items]
    if cls is set or iterable is None:
        return set_order.new_set(keys) if cls is set else SetVariable({}, cls, cls())
    return set_order.set_of_call(keys, cls, "new", [TupleVariable(items)])


@registry.function(lookup)
def _lookup(tx: Tracer, items: VariableTracker) -> VariableTracker:
    return SetVariable({expect_key(tx, item): None for item in tx.unpack(items)})


@registry.function(change)
def _change(
    tx: Tracer,
    self: SetVariable,
    lost: VariableTracker,
    new: VariableTracker,
    method: VariableTracker,
    *others: VariableTracker,
) -> VariableTracker:
    for key in [expect_key(tx, item) for item in tx.unpack(lost)]:
        self.items.pop(key, None)
    for key in [expect_key(tx, item) for item in tx.unpack(new)]:
        if key not in self.items:
            self.items[key] = None
    set_order.record_call(self, as_constant(method), *map(storage_of, others))
    tx.side_effects.contents_changed(self)
    return none()


@registry.function(derived)
def _derived(
    tx: Tracer, self: SetVariable, result: VariableTracker, method: VariableTracker, *others: VariableTracker
) -> VariableTracker:
    keys = [expect_key(tx, item) for item in tx.unpack(result)]
    return set_order.set_of_call(keys, self.cls, as_constant(method), [self, *map(storage_of, others)])


@registry.function(set)
def _set(tx: Tracer, iterable: VariableTracker | None = None, /) -> VariableTracker:
    return _make(tx, iterable, set)


@registry.function(frozenset)
def _frozenset(tx: Tracer, iterable: VariableTracker | None = None, /) -> VariableTracker:
    if isinstance(iterable, SetVariable) and iterable.cls is frozenset:
        return iterable
    return _make(tx, iterable, frozenset)
