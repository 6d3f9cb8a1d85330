"""Owns the polyfills: plain Python twins of builtins and methods of containers, which are traced instead of them.

It knows nothing of trackers; a twin is ordinary Python with the signature and the results of what it stands for, and
the registry maps the one to the other. What a twin cannot do it hands to `cannot_trace`, which breaks the graph.
"""

# Twins are traced, not called, and take whatever the original takes: annotations would say nothing.
# mypy: allow-untyped-defs, allow-untyped-calls
# Loops instead of generator expressions, and no library function inside its own twin.
# ruff: noqa: SIM110, SIM401

from __future__ import annotations

import collections
import operator
from typing import Any

from minidynamo.tracer.registry import polyfill, polyfill_class_method


def cannot_trace(what: str, why: str) -> Any:
    """Break the graph at the call of the twin. The tracer handles this function; it never runs while tracing."""
    raise NotImplementedError(f"{what}: {why}")


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


def _ranked_items(iterable):
    # Equal or incomparable items (NaN, sets) would show in which order the set gave them.
    if not isinstance(iterable, (set, frozenset)):
        return list(iterable)
    items = unordered_items(iterable)
    for item in items:
        if not isinstance(item, (int, float, str, bytes)) or item != item:
            return list(iterable)
    return items


# --- builtins -----------------------------------------------------------------------------------------------------


@polyfill(any)
def any_(iterable, /):
    for item in iterable:
        if item:
            return True
    return False


@polyfill(all)
def all_(iterable, /):
    for item in iterable:
        if not item:
            return False
    return True


def sum_of_numbers(numbers: tuple[complex, ...], start: complex) -> complex:
    """What `sum` gives; the tracer runs it."""
    return sum(numbers, start)


@polyfill(sum)
def sum_(iterable, /, start=0):
    if isinstance(start, (str, bytes, bytearray)):
        cannot_trace("`sum` of text", "sum refuses it")
    items = list(iterable)
    position = 0
    if isinstance(start, (int, float, complex)):
        # Leading numbers are known now and go through the real sum, which adds floats with compensation from 3.12 on.
        while position < len(items) and isinstance(items[position], (int, float, complex)):
            position += 1
        start = sum_of_numbers(tuple(items[:position]), start)
    for item in items[position:]:
        start = start + item
    return start


def _extreme(is_better, args, key, default):
    if not args or list(default) not in ([], ["default"]) or (default and len(args) > 1):
        cannot_trace("`min` or `max` with these arguments", "it raises TypeError")
    items = (_ranked_items(args[0]) if key is None else list(args[0])) if len(args) == 1 else list(args)
    if not items:
        if not default:
            raise ValueError("`min` or `max` of nothing")
        return default["default"]
    best = items[0]
    best_key = best if key is None else key(best)
    for item in items[1:]:
        item_key = item if key is None else key(item)
        if is_better(item_key, best_key):
            best, best_key = item, item_key
    return best


@polyfill(min)
def min_(*args, key=None, **default):
    return _extreme(operator.lt, args, key, default)


@polyfill(max)
def max_(*args, key=None, **default):
    return _extreme(operator.gt, args, key, default)


@polyfill(sorted)
def sorted_(iterable, /, *, key=None, reverse=False):
    result = _ranked_items(iterable) if key is None else list(iterable)
    result.sort(key=key, reverse=reverse)
    return result


# --- list, tuple and deque ----------------------------------------------------------------------------------------


@polyfill(list.extend, collections.deque.extend)
def list_extend(self, iterable, /):
    # What an iterator gave before it raised an error stays in the list.
    for item in iterable if hasattr(iterable, "__next__") else list(iterable):
        self.append(item)


@polyfill(list.__iadd__, collections.deque.__iadd__)
def list_iadd(self, iterable, /):
    self.extend(iterable)
    return self


@polyfill(collections.deque.extendleft)
def deque_extendleft(self, iterable, /):
    for item in iterable if hasattr(iterable, "__next__") else list(iterable):
        self.appendleft(item)


@polyfill(collections.deque.rotate)
def deque_rotate(self, n=1, /):
    if self:
        for _ in range(n % len(self)):
            self.appendleft(self.pop())


@polyfill(list.index, tuple.index, collections.deque.index)
def sequence_index(self, value, start=0, stop=None, /):
    length = len(self)
    stop = length if stop is None else stop
    first = max(start + length, 0) if start < 0 else start
    last = stop + length if stop < 0 else min(stop, length)
    for position in range(first, last):
        item = self[position]
        if item is value or item == value:
            return position
    raise ValueError("the value is not there")


@polyfill(list.count, tuple.count, collections.deque.count)
def sequence_count(self, value, /):
    found = 0
    for item in self:
        if item is value or item == value:
            found += 1
    return found


@polyfill(list.__contains__, tuple.__contains__, collections.deque.__contains__)
def sequence_contains(self, value, /):
    for item in self:
        if item is value or item == value:
            return True
    return False


@polyfill(list.remove, collections.deque.remove)
def list_remove(self, value, /):
    del self[sequence_index(self, value)]


def same_or_equal(left, right):
    """Whether CPython takes two elements of containers for one; `operators.py` has a rule for it, which asks less."""
    return left is right or left == right


def sequence_equal(left, right):
    """Whether two sequences of the same kind are equal, element by element as CPython compares them."""
    if len(left) != len(right):
        return False
    for a, b in zip(left, right):
        if not same_or_equal(a, b):
            return False
    return True


def sequence_compare(compare, left, right):
    """`compare` (operator.lt and its kin) of two sequences: decided by the first elements that differ."""
    for a, b in zip(left, right):
        if not same_or_equal(a, b):
            return compare(a, b)
    return compare(len(left), len(right))


# --- dict ---------------------------------------------------------------------------------------------------------


@polyfill(dict.update, collections.OrderedDict.update)
def dict_update(self, other=(), /, **kwargs):
    if hasattr(other, "keys"):
        for key in other.keys():  # noqa: SIM118 (this is the protocol of dict.update)
            self[key] = other[key]
    else:
        for key, value in other:
            self[key] = value
    for key, value in kwargs.items():
        self[key] = value


@polyfill(dict.setdefault, collections.OrderedDict.setdefault)
def dict_setdefault(self, key, default=None, /):
    if key not in self:
        self[key] = default
    return self[key]


@polyfill(dict.get)
def dict_get(self, key, default=None, /):
    return self[key] if key in self else default


@polyfill(dict.__ior__, collections.OrderedDict.__ior__)
def dict_ior(self, other, /):
    self.update(other)
    return self


@polyfill_class_method(dict, "fromkeys")
def dict_fromkeys(iterable, value=None, /):
    result = {}
    for key in iterable:
        result[key] = value
    return result


def dict_equal(left, right):
    """Whether two dictionaries hold equal values under the same keys, in any order."""
    if len(left) != len(right):
        return False
    for key, value in left.items():
        if key not in right:
            return False
        other = right[key]
        if not same_or_equal(value, other):
            return False
    return True


def ordered_dict_equal(left, right):
    """Equality of two OrderedDicts: their order counts."""
    return dict_equal(left, right) and sequence_equal(list(left), list(right))


# --- set ----------------------------------------------------------------------------------------------------------


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
