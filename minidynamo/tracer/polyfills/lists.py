"""Owns the polyfills of the methods of lists, tuples, deques and slices that search, count, extend, compare and bound.

The other methods have handlers in `handlers/lists.py`.
"""

# Twins are traced, not called, and take whatever the original takes: annotations would say nothing.
# mypy: allow-untyped-defs, allow-untyped-calls
# Loops instead of generator expressions, and no library function inside its own twin.
# ruff: noqa: SIM110

from __future__ import annotations

import collections
import operator
import types

from minidynamo.tracer.records import registry
from minidynamo.tracer.records.registry import polyfill
from minidynamo.variables.iterators import BY_INDEX

_END = object()


def says_length(cls: type) -> bool:
    """Whether a class has written how long its instances are, or asks somebody who has; the tracer runs it."""
    if cls in (BY_INDEX, reversed):
        return True
    return any(isinstance(getattr(cls, name, None), types.FunctionType) for name in ("__len__", "__length_hint__"))


def iterates_itself(cls: type) -> bool:
    """Whether a class has written what its instances give one by one; the tracer runs it."""
    return isinstance(getattr(cls, "__iter__", None), types.FunctionType)


registry.fold(says_length, iterates_itself)


def ask_length(iterable, default=0):
    """What C asks an iterable before it makes a list of it, as `operator.length_hint` does."""
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
    """`list(iterable)` that asks for the length, as C does outside of twins. The tracer handles this function."""
    return list(iterable)


@polyfill(list.extend)
def list_extend(self, iterable, /):
    # What an iterator gave before it raised an error stays in the list.
    if hasattr(type(iterable), "__next__"):
        iterator = iter(iterable)
        if says_length(type(iterable)):
            ask_length(iterable)
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
