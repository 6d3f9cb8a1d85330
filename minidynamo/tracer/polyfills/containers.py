"""Owns the polyfills of methods of lists, tuples, deques, slices, dicts and sets: searching, counting, extending,
updating, copying, comparing, bounds, and operations on sets that need no order.

Other methods are not here but have handlers (`handlers/lists.py`, `handlers/dicts.py`, `handlers/sets.py`).
"""

# Polyfills are traced, not called, and accept all arguments of the original, so annotations would add nothing.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import collections
import operator
import types

from minidynamo.compat import PY312
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.registry import polyfill, polyfill_class_method

# Loops instead of generator expressions, and no library function inside its own polyfill.
# ruff: noqa: SIM110


_END = object()


def has_own_iter(cls: type) -> bool:
    """Returns whether a user's code defines how a class's instances are iterated; the tracer runs this function."""
    return isinstance(getattr(cls, "__iter__", None), types.FunctionType)


registry.fold(has_own_iter)


@polyfill(list.extend, collections.deque.extend)
def list_extend(self, iterable, /):
    # Items that an iterator returned before it raised an error stay in the list.
    for item in iterable if hasattr(type(iterable), "__next__") else list(iterable):
        self.append(item)


@polyfill(list.__iadd__, collections.deque.__iadd__)
def list_iadd(self, iterable, /):
    self.extend(iterable)
    return self


@polyfill(collections.deque.extendleft)
def deque_extendleft(self, iterable, /):
    for item in iterable if hasattr(type(iterable), "__next__") else list(iterable):
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
    """Returns whether CPython treats two elements of containers as equal; `identity.py` has a handler for it."""
    return left is right or left == right


def sequence_equal(left, right):
    """Returns whether two sequences of the same kind are equal, element by element as CPython compares them."""
    if len(left) != len(right):
        return False
    for a, b in zip(left, right):
        if not same_or_equal(a, b):
            return False
    return True


def sequence_compare(compare, left, right):
    """Compares two sequences by `compare` (operator.lt and similar): the first different elements decide."""
    for a, b in zip(left, right):
        if not same_or_equal(a, b):
            return compare(a, b)
    return compare(len(left), len(right))


@polyfill(slice.indices)
def indices(part, length, /):
    length = operator.index(length)
    step = 1 if part.step is None else operator.index(part.step)
    if length < 0 or step == 0:
        raise ValueError("a negative length, or a step of zero")
    first, last = (0, length) if step > 0 else (-1, length - 1)
    begin, end = (first, last) if step > 0 else (last, first)
    bounds = []
    for bound, missing in ((part.start, begin), (part.stop, end)):
        if bound is None:
            bounds.append(missing)
        else:
            bound = operator.index(bound)
            bounds.append(max(bound + length, first) if bound < 0 else min(bound, last))
    return (*bounds, step)


def dict_update(self, other=(), /, **kwargs):
    """Updates by the methods of the mapping; a plain dict stores the entries directly."""
    if hasattr(other, "keys"):
        for key in other.keys():  # noqa: SIM118 (this is the protocol of dict.update)
            self[key] = other[key]
    else:
        for key, value in other:
            self[key] = value
    for key, value in kwargs.items():
        self[key] = value


def ordered_setdefault(self, key, default=None, /):
    """Executes `setdefault` of an instance of a subclass of OrderedDict."""
    if key in self:
        return self[key]
    self[key] = default
    return default


def ordered_ior(self, other, /):
    """Executes `|=` of an instance of a subclass of OrderedDict."""
    dict_update(self, other)
    return self


def ordered_copy(self, /):
    """Executes `copy` of an instance of a subclass of OrderedDict."""
    duplicate = type(self)()
    for key in list(collections.OrderedDict.__iter__(self)):
        duplicate[key] = self[key]
    return duplicate


@polyfill_class_method("fromkeys", collections.OrderedDict)
def ordered_dict_fromkeys(cls, iterable, value=None):
    return dict_fromkeys(cls, iterable, value)


@polyfill_class_method("fromkeys", dict)
def dict_fromkeys(cls, iterable, value=None, /):
    result = cls()
    for key in iterable:
        result[key] = value
    return result


def dict_equal(left, right):
    """Returns whether two dictionaries have equal values under the same keys, in any order."""
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
    """Returns whether two OrderedDicts are equal, order included."""
    return dict_equal(left, right) and sequence_equal(list(left), list(right))


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
        left = lookup(items)
        operand = _operand(other) if issubclass(type(other), (set, frozenset, dict)) else _until_found(left, other)
        operands.append(operand)
        right = lookup(_all_items(operand))
        if issubclass(type(other), (set, frozenset)) and len(other) > len(left):
            items = [item for item in unordered_items(left) if item in right]
        else:
            items = [item for item in unordered_items(right) if item in left]
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
