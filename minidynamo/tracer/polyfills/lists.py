"""Owns the polyfills of methods of lists, tuples, deques and slices that search, count, extend, compare and bound.

Other methods are not here but have handlers (`handlers/lists.py`)."""

# Polyfills are traced, not called, and accept all arguments of the original, so annotations would add nothing.
# mypy: allow-untyped-defs, allow-untyped-calls
# Loops instead of generator expressions, and no library function inside its own polyfill.
# ruff: noqa: SIM110

from __future__ import annotations

import collections
import operator
import types

from minidynamo.tracer.records import registry
from minidynamo.tracer.records.registry import polyfill
from minidynamo.variables.iterators import BY_INDEX

_END = object()


def has_own_length(cls: type) -> bool:
    """Returns whether a user's code defines the length of a class's instances; the tracer runs this function."""
    if cls in (BY_INDEX, reversed):
        return True
    return any(isinstance(getattr(cls, name, None), types.FunctionType) for name in ("__len__", "__length_hint__"))


def has_own_iter(cls: type) -> bool:
    """Returns whether a user's code defines how a class's instances are iterated; the tracer runs this function."""
    return isinstance(getattr(cls, "__iter__", None), types.FunctionType)


registry.fold(has_own_length, has_own_iter)


def read_length_hint(iterable, default=0):
    """Returns the length hint that C reads before it makes a list of an iterable, as `operator.length_hint` does."""
    cls = type(iterable)
    if hasattr(cls, "__len__"):
        try:
            return len(iterable)
        except TypeError:
            pass
    if not hasattr(cls, "__length_hint__"):
        return default
    try:
        hint = cls.__length_hint__(iterable)
    except TypeError:
        return default
    if hint is NotImplemented:
        return default
    if not issubclass(type(hint), int):
        raise TypeError(f"__length_hint__ must be an integer, not {type(hint).__name__}")
    if hint < 0:
        raise ValueError("__length_hint__() should return >= 0")
    return int(hint)


def sized_list(iterable):
    """Returns `list(iterable)`, with the read of the length hint that C does. The tracer handles this function."""
    return list(iterable)


@polyfill(list.extend)
def list_extend(self, iterable, /):
    # Items that an iterator returned before it raised an error stay in the list.
    if hasattr(type(iterable), "__next__"):
        iterator = iter(iterable)
        if has_own_length(type(iterable)):
            read_length_hint(iterable)
        while (item := next(iterator, _END)) is not _END:
            self.append(item)
    else:
        for item in sized_list(iterable):
            self.append(item)


@polyfill(collections.deque.extend)
def deque_extend(self, iterable, /):
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
