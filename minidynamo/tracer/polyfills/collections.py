"""Owns the polyfills of collections, heapq and bisect.

Methods of deques and OrderedDicts are not here, but with those of lists and dicts (`lists.py`, `dicts.py`)."""

# Polyfills are traced, not called, and accept all arguments of the original, so annotations would add nothing.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import bisect
import heapq

from minidynamo.tracer.records.registry import polyfill

# --- heapq: the heap is laid out exactly as the original lays it out -----------------------------------------------


def _smaller(one, other):
    return one < other


def _larger(one, other):
    return other < one


def _sink(heap, start, position, before=_smaller):
    """Moves the item at `position` towards `start` until it does not come before its parent."""
    item = heap[position]
    while position > start:
        above = (position - 1) // 2
        if not before(item, heap[above]):
            break
        heap[position] = heap[above]
        position = above
    heap[position] = item


def _settle(heap, position, before=_smaller):
    """Moves the item at `position` to a leaf, always past the child that comes first, and then back up."""
    start, end, item = position, len(heap), heap[position]
    child = 2 * position + 1
    while child < end:
        if child + 1 < end and not before(heap[child], heap[child + 1]):
            child += 1
        heap[position] = heap[child]
        position = child
        child = 2 * position + 1
    heap[position] = item
    _sink(heap, start, position, before)


@polyfill(heapq.heapify)
def heapify(heap, /):
    for position in range(len(heap) // 2 - 1, -1, -1):
        _settle(heap, position)


# `heapq.nsmallest` and `nlargest` are Python, and traced. The former keeps the largest item at the top, by functions
# whose names depend on the Python version.


@polyfill(getattr(heapq, "_heapify_max", None) or vars(heapq)["heapify_max"])
def heapify_max(heap, /):
    for position in range(len(heap) // 2 - 1, -1, -1):
        _settle(heap, position, _larger)


@polyfill(getattr(heapq, "_heapreplace_max", None) or vars(heapq)["heapreplace_max"])
def heapreplace_max(heap, item, /):
    largest = heap[0]
    heap[0] = item
    _settle(heap, 0, _larger)
    return largest


@polyfill(heapq.heappush)
def heappush(heap, item, /):
    heap.append(item)
    _sink(heap, 0, len(heap) - 1)


@polyfill(heapq.heappop)
def heappop(heap, /):
    if not heap:
        raise IndexError("index out of range")
    last = heap.pop()
    return heapreplace(heap, last) if heap else last


@polyfill(heapq.heapreplace)
def heapreplace(heap, item, /):
    if not heap:
        raise IndexError("index out of range")
    smallest = heap[0]
    heap[0] = item
    _settle(heap, 0)
    return smallest


@polyfill(heapq.heappushpop)
def heappushpop(heap, item, /):
    return heapreplace(heap, item) if heap and heap[0] < item else item


# --- bisect ---------------------------------------------------------------------------------------------------------


def _bounds(a, lo, hi):
    if lo < 0:
        raise ValueError("lo must be non-negative")
    return lo, len(a) if hi is None else hi


@polyfill(bisect.bisect_left)
def bisect_left(a, x, lo=0, hi=None, *, key=None):
    low, high = _bounds(a, lo, hi)
    while low < high:
        middle = (low + high) // 2
        if (a[middle] if key is None else key(a[middle])) < x:
            low = middle + 1
        else:
            high = middle
    return low


@polyfill(bisect.bisect_right)
def bisect_right(a, x, lo=0, hi=None, *, key=None):
    low, high = _bounds(a, lo, hi)
    while low < high:
        middle = (low + high) // 2
        if x < (a[middle] if key is None else key(a[middle])):
            high = middle
        else:
            low = middle + 1
    return low


@polyfill(bisect.insort_left)
def insort_left(a, x, lo=0, hi=None, *, key=None):
    a.insert(bisect_left(a, x if key is None else key(x), lo, hi, key=key), x)


@polyfill(bisect.insort_right)
def insort_right(a, x, lo=0, hi=None, *, key=None):
    a.insert(bisect_right(a, x if key is None else key(x), lo, hi, key=key), x)
