"""Owns the polyfills of the methods of sets, and what twins may ask of sets without asking for an order.

The other methods have handlers in `handlers/sets.py`.
"""

# Twins are traced, not called, and take whatever the original takes: annotations would say nothing.
# mypy: allow-untyped-defs, allow-untyped-calls
# Loops instead of generator expressions, and no library function inside its own twin.
# ruff: noqa: SIM110

from __future__ import annotations

from minidynamo.tracer.registry import polyfill


def unordered_items(items):
    """The items of a set, in any order: for results that do not depend on the order.

    The tracer handles this function. A plain loop over a set breaks the graph, because equal sets may iterate in
    different orders.
    """
    return list(items)


def merge(items, other):
    """Add the items of a set or the keys of a dict to a set. The tracer handles this function."""
    items.update(other)


def forget_order(items):
    """The set came to be in another way than the original's: nobody may ask for its order. The tracer handles this."""


def _all_items(iterable):
    return unordered_items(iterable) if isinstance(iterable, (set, frozenset)) else list(iterable)


@polyfill(set.update)
def set_update(self, *others):
    for other in others:
        if isinstance(other, (set, frozenset)) or type(other) is dict:
            merge(self, other)
        else:
            for item in other:
                self.add(item)


@polyfill(set.difference_update)
def set_difference_update(self, *others):
    for other in others:
        for item in _all_items(other):
            self.discard(item)


@polyfill(set.intersection_update)
def set_intersection_update(self, *others):
    for other in others:
        kept = set(other)
        larger = isinstance(other, (set, frozenset)) and len(other) > len(self)
        for item in unordered_items(self):
            if item not in kept:
                self.discard(item)
        if not larger:  # of two items that are equal the one of the smaller set stays
            for item in unordered_items(kept):
                if item in self:
                    self.discard(item)
                    self.add(item)
    forget_order(self)


@polyfill(set.symmetric_difference_update)
def set_symmetric_difference_update(self, other, /):
    for item in unordered_items(set(other)):
        if item in self:
            self.discard(item)
        else:
            self.add(item)
    forget_order(self)


def _set_result(like, items):
    if not isinstance(like, frozenset):
        return items
    forget_order(items)
    return frozenset(items)


@polyfill(set.union, frozenset.union)
def set_union(self, *others):
    result = set(self)
    set_update(result, *others)
    return _set_result(self, result)


@polyfill(set.difference, frozenset.difference)
def set_difference(self, *others):
    result = set(self)
    set_difference_update(result, *others)
    forget_order(result)
    return _set_result(self, result)


@polyfill(set.intersection, frozenset.intersection)
def set_intersection(self, *others):
    result = set(self)
    set_intersection_update(result, *others)
    return _set_result(self, result)


@polyfill(set.symmetric_difference, frozenset.symmetric_difference)
def set_symmetric_difference(self, other, /):
    result = set(self)
    set_symmetric_difference_update(result, other)
    return _set_result(self, result)


@polyfill(set.issubset, frozenset.issubset)
def set_issubset(self, other, /):
    other = set(other)
    for item in unordered_items(self):
        if item not in other:
            return False
    return True


@polyfill(set.issuperset, frozenset.issuperset)
def set_issuperset(self, other, /):
    for item in _all_items(other):
        if item not in self:
            return False
    return True


def set_equal(left, right):
    """Whether two sets hold the same items."""
    return len(left) == len(right) and set_issubset(left, right)


@polyfill(set.isdisjoint, frozenset.isdisjoint)
def set_isdisjoint(self, other, /):
    for item in _all_items(other):
        if item in self:
            return False
    return True
