"""Owns the polyfills of builtin functions over iterables (any, all, sum, min, max, sorted), and of ascii.

Polyfills of builtins for objects (reversed, repr, ...) are not here (`objects.py`)."""

# Polyfills are traced, not called, and accept all arguments of the original, so annotations would add nothing.
# mypy: allow-untyped-defs, allow-untyped-calls
# Loops instead of generator expressions, and no library function inside its own polyfill.
# ruff: noqa: SIM110

from __future__ import annotations

import operator
from typing import Any

from minidynamo.tracer.polyfills.containers import has_own_iter, unordered_items
from minidynamo.tracer.records.registry import cannot_trace, polyfill

_END: Any = object()


def _ranked_items(iterable):
    # Among equal or incomparable items (NaN, sets) the result would depend on the order of the set.
    cls = type(iterable)
    if issubclass(cls, (set, frozenset)) and has_own_iter(cls):
        return list(iterable)
    items = unordered_items(iterable)
    for item in items:
        if not issubclass(type(item), (int, float, str, bytes)) or item != item:
            return list(iterable)
    return items


@polyfill(ascii)
def ascii_text(obj, /):
    return repr(obj).encode("ascii", "backslashreplace").decode("ascii")


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
    """Returns `sum(numbers, start)`; the tracer runs this function."""
    return sum(numbers, start)


@polyfill(sum)
def sum_(iterable, /, start=0):
    if issubclass(type(start), (str, bytes, bytearray)):
        cannot_trace("`sum` of text", "sum refuses it")
    rest = iter(iterable)  # item by item: values of a generator die before it computes more
    if issubclass(type(start), (int, float, complex)):
        # Leading numbers are known; the real sum adds them, with compensated rounding of floats from 3.12 on.
        numbers: list[complex] = []
        while (item := next(rest, _END)) is not _END:
            if not issubclass(type(item), (int, float, complex)):
                start = sum_of_numbers(tuple(numbers), start) + item
                break
            numbers.append(item)
        else:
            return sum_of_numbers(tuple(numbers), start)
    while (item := next(rest, _END)) is not _END:
        start = start + item
    return start


def _extreme(is_better, args, key, default):
    if not args or list(default) not in ([], ["default"]) or (default and len(args) > 1):
        cannot_trace("`min` or `max` with these arguments", "it raises TypeError")
    iterable = args if len(args) > 1 else args[0]
    is_set = issubclass(type(iterable), (set, frozenset))
    items = iter(_ranked_items(iterable) if key is None and is_set else iterable)
    best = next(items, _END)
    if best is _END:
        if not default:
            raise ValueError("`min` or `max` of nothing")
        return default["default"]
    if key is None:
        while (item := next(items, _END)) is not _END:
            best = better(is_better, best, item)
        return best
    best_key = key(best)
    while (item := next(items, _END)) is not _END:
        item_key = key(item)
        if is_better(item_key, best_key):
            best, best_key = item, item_key
    return best


def better(is_better, best, item):
    """Returns the result of `decided`; the tracer replaces this function where no decision is needed."""
    return decided(is_better, best, item)


def decided(is_better, best, item):
    """Returns the item if it is better, otherwise the best so far."""
    return item if is_better(item, best) else best


@polyfill(min)
def min_(*args, key=None, **default):
    return _extreme(operator.lt, args, key, default)


@polyfill(max)
def max_(*args, key=None, **default):
    return _extreme(operator.gt, args, key, default)


@polyfill(sorted)
def sorted_(iterable, /, *, key=None, reverse=False):
    is_set = issubclass(type(iterable), (set, frozenset))
    result = _ranked_items(iterable) if key is None and is_set else list(iterable)
    result.sort(key=key, reverse=reverse)
    return result
