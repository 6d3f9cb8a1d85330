"""Owns the polyfills of itertools.

`chain` and `islice` are not here: they have trackers of their own (`handlers/iterators.py`), because a frame can end in
the middle of their loops. Other polyfills are generators."""

# Polyfills are traced, not called, and accept all arguments of the original, so annotations would add nothing.
# mypy: allow-untyped-defs, allow-untyped-calls
# Loops instead of generator expressions, and no library function inside its own polyfill. `next` instead of loops over
# the result of `iter`: a loop would call `__iter__` of a user's iterator again.
# ruff: noqa: C417, RUF007, SIM110

from __future__ import annotations

import itertools
import operator
from typing import Any

from minidynamo.tracer.polyfills.containers import same_or_equal
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.registry import cannot_trace, polyfill

_END = object()


def _is_immutable(*iterables):
    """Returns whether the items can never change, so that the program cannot observe when they are read.

    Then all items are read at once: an iterator over a finished list survives a graph break in the middle of a loop.
    From any other iterable, items are read as lazily as the original reads them."""
    for iterable in iterables:
        if type(iterable) not in (tuple, range, str, bytes):
            return False
    return True


_NO_LIMIT = object()


@polyfill(itertools.repeat)
def repeat(object, times=_NO_LIMIT):
    return _repeat_forever(object) if times is _NO_LIMIT else iter([object] * operator.index(times))


def _repeat_forever(item):
    while True:
        yield item


@polyfill(itertools.count)
def count(start=0, step=1):
    while True:
        yield start
        start = start + step


@polyfill(itertools.cycle)
def cycle(iterable, /):
    return _cycled(iter(iterable))


def _cycled(source):
    items = []
    while (item := next(source, _END)) is not _END:
        items.append(item)
        yield item
    while items:
        for item in items:
            yield item


@polyfill(itertools.accumulate)
def accumulate(iterable, func=None, *, initial=None):
    if func is None and _is_immutable(iterable):
        return iter(list(_accumulated(iter(iterable), operator.add, initial)))
    return _accumulated(iter(iterable), operator.add if func is None else func, initial)


def _accumulated(source, function, initial):
    total = next(source, _END) if initial is None else initial
    if total is _END:
        return
    yield total
    while (item := next(source, _END)) is not _END:
        total = function(total, item)
        yield total


@polyfill(itertools.product)
def product(*iterables, repeat=1):
    pools = [tuple(pool) for pool in iterables] * operator.index(repeat)
    rows: list[tuple[Any, ...]] = [()]
    for pool in pools:
        rows = [(*row, item) for row in rows for item in pool]
    return iter(rows)


def _pick(make_positions, iterable, r):
    # The chosen positions depend on the number of items alone, so the real function computes them.
    pool = tuple(iterable)
    positions = make_positions(len(pool), len(pool) if r is None else r)
    return iter([tuple([pool[i] for i in row]) for row in positions])


def combination_positions(length: int, r: int) -> tuple[tuple[int, ...], ...]:
    """Returns the positions that itertools.combinations picks from `length` items."""
    return tuple(itertools.combinations(range(length), r))


def replacement_positions(length: int, r: int) -> tuple[tuple[int, ...], ...]:
    """Returns the positions that itertools.combinations_with_replacement picks from `length` items."""
    return tuple(itertools.combinations_with_replacement(range(length), r))


def permutation_positions(length: int, r: int) -> tuple[tuple[int, ...], ...]:
    """Returns the positions that itertools.permutations picks from `length` items."""
    return tuple(itertools.permutations(range(length), r))


registry.fold(combination_positions, replacement_positions, permutation_positions)


@polyfill(itertools.combinations)
def combinations(iterable, r):
    return _pick(combination_positions, iterable, r)


@polyfill(itertools.combinations_with_replacement)
def combinations_with_replacement(iterable, r):
    return _pick(replacement_positions, iterable, r)


@polyfill(itertools.permutations)
def permutations(iterable, r=None):
    return _pick(permutation_positions, iterable, r)


@polyfill(itertools.pairwise)
def pairwise(iterable, /):
    if _is_immutable(iterable):
        items = list(iterable)
        return zip(items[:-1], items[1:])
    return _pairs(iter(iterable))


def _pairs(source):
    left = next(source, _END)
    while (right := next(source, _END)) is not _END:
        yield left, right
        left = right


def batched(iterable, n, *, strict=False):
    if strict or n < 1:
        cannot_trace("`itertools.batched` with these arguments", "it may raise ValueError")
    return _batches(iter(iterable), n)


def _batches(source, n):
    batch = []
    while (item := next(source, _END)) is not _END:
        batch.append(item)
        if len(batch) == n:
            yield tuple(batch)
            batch = []
    if batch:
        yield tuple(batch)


if hasattr(itertools, "batched"):  # from Python 3.12 on
    polyfill(itertools.batched)(batched)


@polyfill(itertools.starmap)
def starmap(function, iterable, /):
    return map(lambda args: function(*args), iterable)


@polyfill(itertools.filterfalse)
def filterfalse(function, iterable, /):
    return filter(lambda item: not (item if function is None else function(item)), iterable)


@polyfill(itertools.zip_longest)
def zip_longest(*iterables, fillvalue=None):
    return _rows([iter(iterable) for iterable in iterables], fillvalue)


def _rows(columns, fillvalue):
    is_running = [True] * len(columns)
    while True:
        row = []
        for position, column in enumerate(columns):
            item = next(column, _END) if is_running[position] else _END
            if item is _END:
                is_running[position] = False
            row.append(fillvalue if item is _END else item)
        if not any(is_running):
            return
        yield tuple(row)


@polyfill(itertools.compress)
def compress(data, selectors):
    return (item for item, selected in zip(data, selectors) if selected)


@polyfill(itertools.takewhile)
def takewhile(predicate, iterable, /):
    return _take_while(predicate, iter(iterable))


def _take_while(predicate, source):
    while (item := next(source, _END)) is not _END:
        if not predicate(item):
            return
        yield item


@polyfill(itertools.dropwhile)
def dropwhile(predicate, iterable, /):
    return _rest(predicate, iter(iterable))


def _rest(predicate, source):
    dropping = True
    while (item := next(source, _END)) is not _END:
        dropping = dropping and bool(predicate(item))
        if not dropping:
            yield item


@polyfill(itertools.groupby)
def groupby(iterable, key=None):
    return _groups(iter(iterable), key)


def _groups(source, key):
    value = current = wanted = _END  # the pending item, its key, the key of the last group
    number = 0  # number of the last group: earlier groups return nothing more

    def step():
        nonlocal value, current
        found = next(source, _END)
        if found is _END:
            return False
        current = found if key is None else key(found)
        value = found
        return True

    def items(group, target):
        nonlocal value
        while number == group:
            if value is _END and not step():
                return
            if not same_or_equal(target, current):
                return
            item, value = value, _END
            yield item

    while True:
        number += 1
        while current is _END or (wanted is not _END and same_or_equal(wanted, current)):
            if not step():
                return
        wanted = current
        yield current, items(number, current)


def tee(iterable, n=2, /):
    if n < 0:
        cannot_trace("`itertools.tee` with a negative number", "it raises ValueError")
    source = iter(iter(iterable))  # the original calls `iter` twice, too
    queues: list[list[Any]] = [[] for _ in range(n)]
    return tuple([Branch(source, queues, mine) for mine in queues])


class Branch:
    """An iterator of `tee`. An exhausted branch reads the source again on the next call."""

    def __init__(self, source, queues, mine):
        self.source = source
        self.queues = queues
        self.mine = mine

    def __iter__(self):
        return self

    def __next__(self):
        if not self.mine:
            item = next(self.source)
            for queue in self.queues:
                queue.append(item)
        return self.mine.pop(0)


def until(function, sentinel):
    """Iterates as `iter(function, sentinel)` does."""
    while True:
        item = function()
        if sentinel is item or sentinel == item:
            return
        yield item
