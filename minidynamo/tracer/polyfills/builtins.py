"""Owns the polyfills of builtin functions over iterables: any, all, sum, min, max, sorted.

Those about objects (reversed, repr, ...) are in `objects.py`.
"""

# Twins are traced, not called, and take whatever the original takes: annotations would say nothing.
# mypy: allow-untyped-defs, allow-untyped-calls
# Loops instead of generator expressions, and no library function inside its own twin.
# ruff: noqa: SIM110

from __future__ import annotations

import operator
from typing import Any

from minidynamo.tracer.polyfills.lists import iterates_itself, sized_list
from minidynamo.tracer.polyfills.refusal import cannot_trace
from minidynamo.tracer.polyfills.sets import unordered_items
from minidynamo.tracer.records.registry import polyfill

_END: Any = object()


def _ranked_items(iterable):
    # Equal or incomparable items (NaN, sets) would show in which order the set gave them.
    cls = type(iterable)
    if issubclass(cls, (set, frozenset)) and iterates_itself(cls):
        return list(iterable)
    items = unordered_items(iterable)
    for item in items:
        if not issubclass(type(item), (int, float, str, bytes)) or item != item:
            return list(iterable)
    return items


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
    if issubclass(type(start), (str, bytes, bytearray)):
        cannot_trace("`sum` of text", "sum refuses it")
    rest = iter(iterable)  # one at a time: what a generator computes shall die before it computes more
    if issubclass(type(start), (int, float, complex)):
        # Leading numbers are known now and go through the real sum, which adds floats with compensation from 3.12 on.
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
    given = args if len(args) > 1 else args[0]
    is_set = issubclass(type(given), (set, frozenset))
    items = iter(_ranked_items(given) if key is None and is_set else given)
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
    """What `decided` gives, without a decision where the tracer can do without."""
    return decided(is_better, best, item)


def decided(is_better, best, item):
    """The item if it is better."""
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
    result = _ranked_items(iterable) if key is None and is_set else sized_list(iterable)
    result.sort(key=key, reverse=reverse)
    return result
