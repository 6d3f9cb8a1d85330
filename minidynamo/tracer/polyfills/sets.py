"""Owns the polyfills of the methods of sets, and operations on sets that need no order.

Other methods are not here but have handlers (`handlers/sets.py`)."""

# Polyfills are traced, not called, and accept all arguments of the original, so annotations would add nothing.
# mypy: allow-untyped-defs, allow-untyped-calls
# Loops instead of generator expressions, and no library function inside its own polyfill.
# ruff: noqa: SIM110

from __future__ import annotations

from minidynamo.compat import PY312
from minidynamo.tracer.records.registry import polyfill


def unordered_items(items):
    """Returns the items of a set in any order, for results that do not depend on the order.

    The tracer handles this function. A plain loop over a set breaks the graph, because equal sets may iterate in
    different orders."""
    return list(items)


def lookup(items):
    """Returns a set for membership tests only. The tracer handles this function."""
    return set(items)


def change(items, lost, new, method, *others):
    """Removes `lost` and adds `new`, as `items.method(*others)` does. The tracer handles this function."""
    getattr(set, method)(items, *others)


def derived(items, result, method, *others):
    """Returns the set of `result`, as `items.method(*others)` does. The tracer handles this function."""
    return getattr(items, method)(*others)


def _all_items(iterable):
    return unordered_items(iterable) if issubclass(type(iterable), (set, frozenset)) else list(iterable)


def _one_by_one(iterable):
    """Returns the items for a caller that may stop before the end."""
    return unordered_items(iterable) if issubclass(type(iterable), (set, frozenset)) else iterable


def _operand(iterable):
    """Returns the items as an operand of a set's method, to be read more than once."""
    return iterable if issubclass(type(iterable), (set, frozenset)) or type(iterable) is dict else list(iterable)


def _operands(iterables):
    operands = []
    for iterable in iterables:
        operands.append(_operand(iterable))
    return operands


@polyfill(set.update)
def set_update(self, *others):
    for other in others:
        if issubclass(type(other), (set, frozenset)) or type(other) is dict:
            change(self, [], _all_items(other), "update", other)
        else:
            for item in other:
                self.add(item)


@polyfill(set.difference_update)
def set_difference_update(self, *others):
    for other in others:
        other = _operand(other)
        change(self, _all_items(other), [], "difference_update", other)


def _common(self, others):
    """Returns the common items, and the operands as read; of two equal items, the item of the smaller set counts."""
    items, operands = unordered_items(self), []
    for other in others:
        here = lookup(items)
        operand = _operand(other) if issubclass(type(other), (set, frozenset, dict)) else _until_found(here, other)
        operands.append(operand)
        there = lookup(_all_items(operand))
        if issubclass(type(other), (set, frozenset)) and len(other) > len(here):
            items = [item for item in unordered_items(here) if item in there]
        else:
            items = [item for item in unordered_items(there) if item in here]
    return items, operands


def _until_found(wanted, iterable):
    taken, found = [], set()
    for item in iterable:
        taken.append(item)
        if item in wanted:
            found.add(item)
            if len(found) == len(wanted):
                break
    return taken


@polyfill(set.intersection_update)
def set_intersection_update(self, *others):
    common, operands = _common(self, others)
    change(self, unordered_items(self), common, "intersection_update", *operands)


@polyfill(set.symmetric_difference_update)
def set_symmetric_difference_update(self, other, /):
    other = _operand(other)
    items = unordered_items(lookup(_all_items(other)))
    lost = [item for item in items if item in self]
    change(self, lost, [item for item in items if item not in self], "symmetric_difference_update", other)


@polyfill(set.union, frozenset.union)
def set_union(self, *others):
    others = _operands(others)
    items = unordered_items(self)
    for other in others:
        items = items + _all_items(other)
    return derived(self, items, "union", *others)


@polyfill(set.difference, frozenset.difference)
def set_difference(self, *others):
    others = _operands(others)
    items = unordered_items(self)
    for other in others:
        there = lookup(_all_items(other))
        items = [item for item in items if item not in there]
    return derived(self, items, "difference", *others)


@polyfill(set.intersection, frozenset.intersection)
def set_intersection(self, *others):
    common, operands = _common(self, others)
    return derived(self, common, "intersection", *operands)


@polyfill(set.symmetric_difference, frozenset.symmetric_difference)
def set_symmetric_difference(self, other, /):
    other = _operand(other)
    there = lookup(_all_items(other))
    mine = [item for item in unordered_items(self) if item not in there]
    others = [item for item in unordered_items(there) if item not in self]
    return derived(self, mine + others, "symmetric_difference", other)


@polyfill(set.issubset, frozenset.issubset)
def set_issubset(self, other, /):
    if PY312 and not issubclass(type(other), (set, frozenset)):
        other = _until_found(lookup(unordered_items(self)), other)
    other = lookup(_all_items(other))
    for item in unordered_items(self):
        if item not in other:
            return False
    return True


@polyfill(set.issuperset, frozenset.issuperset)
def set_issuperset(self, other, /):
    for item in _one_by_one(other):
        if item not in self:
            return False
    return True


def set_equal(left, right):
    """Returns whether two sets have the same items."""
    return len(left) == len(right) and set_issubset(left, right)


@polyfill(set.isdisjoint, frozenset.isdisjoint)
def set_isdisjoint(self, other, /):
    for item in _one_by_one(other):
        if item in self:
            return False
    return True


def view_intersection(view, other):
    """Returns `view & other`, where the first is a view of a dict."""
    if type(other) is set and len(view) <= len(other):
        return other.intersection(view)
    if issubclass(type(other), (type({}.keys()), type({}.items()))) and len(other) > len(view):
        view, other = other, view
    result = set()
    for item in other:
        if item in view:
            result.add(item)
    return result
