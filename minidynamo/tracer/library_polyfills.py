"""Owns the polyfills of library functions: functools, math, operator, copy, itertools, dataclasses, enum and torch.

What a polyfill is, and those of the builtins, are in `polyfills.py`.
"""

# Twins are traced, not called, and take whatever the original takes: annotations would say nothing.
# mypy: allow-untyped-defs, allow-untyped-calls
# No library function inside its own twin.
# ruff: noqa: C417, RUF007, SIM110

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import functools
import itertools
import math
import operator
from typing import Any

import torch

from minidynamo.compat import torch_assert as real_assert
from minidynamo.tracer import registry
from minidynamo.tracer.polyfills import cannot_trace, class_method_twin, twin_of

# --- functools, math, operator, copy -------------------------------------------------------------------------------


@twin_of(functools.reduce)
def reduce(function, iterable, /, *initial):
    items = list(initial) + list(iterable)
    if not items:
        cannot_trace("`reduce` of nothing", "it raises TypeError")
    result = items[0]
    for item in items[1:]:
        result = function(result, item)
    return result


@twin_of(math.prod)
def math_prod(iterable, /, *, start=1):
    for item in iterable:
        start = start * item
    return start


@twin_of(operator.abs)
def operator_abs(a, /):
    return abs(a)


@twin_of(operator.itemgetter)
def itemgetter(item, /, *items):
    if not items:
        return lambda obj: obj[item]
    return lambda obj: tuple([obj[key] for key in (item, *items)])


@twin_of(copy.copy)
def copy_copy(x):
    # Instances of other classes say how they are copied in too many ways.
    if type(x) in (list, dict, set, collections.deque, collections.OrderedDict, collections.defaultdict):
        return x.copy()
    if type(x) in (bool, int, float, complex, str, bytes, tuple, frozenset, type(None), slice, range):
        return x
    return cannot_trace("`copy.copy` of this object", "its class decides how it is copied")


# --- itertools ----------------------------------------------------------------------------------------------------
#
# Where taking an item runs no code of the user, all are taken at once: an iterator over a finished list survives a
# graph break in the middle of a loop. Everywhere else the twin is as lazy as the original: `map`, `filter`, generators.

_END = object()


def _is_settled(*iterables):
    """Whether the items are there already, so that it cannot be seen when they are taken."""
    for iterable in iterables:
        if type(iterable) not in (list, tuple, dict, range, str, bytes):
            return False
    return True


@twin_of(itertools.chain)
def chain(*iterables):
    return chain_from_iterable(iterables)


@class_method_twin(itertools.chain, "from_iterable")
def chain_from_iterable(iterables, /):
    if _is_settled(iterables) and _is_settled(*iterables):
        return iter([item for iterable in iterables for item in iterable])
    return (item for iterable in iterables for item in iterable)


@twin_of(itertools.repeat)
def repeat(object, *times):
    return iter([object] * times[0]) if times else _repeat_forever(object)


def _repeat_forever(item):
    while True:
        yield item


@twin_of(itertools.count)
def count(start=0, step=1):
    while True:
        yield start
        start = start + step


@twin_of(itertools.cycle)
def cycle(iterable, /):
    items = []
    for item in iterable:
        items.append(item)
        yield item
    while items:
        for item in items:
            yield item


@twin_of(itertools.islice)
def islice(iterable, /, *bounds):
    for bound in bounds:
        if bound is not None and bound < 0:
            cannot_trace("`itertools.islice` with a negative bound", "it raises ValueError")
    part = slice(*bounds)
    start = 0 if part.start is None else part.start
    step = 1 if part.step is None else part.step
    if _is_settled(iterable):
        return iter(list(iterable)[start : part.stop : step])
    return _sliced(iter(iterable), start, part.stop, step)


def _sliced(source, start, stop, step):
    position = 0
    wanted = start
    # Not one item more than islice itself takes: the source may be used again afterwards.
    while stop is None or position < stop:
        item = next(source, _END)
        if item is _END:
            return
        if position == wanted:
            wanted += step
            yield item
        position += 1


@twin_of(itertools.accumulate)
def accumulate(iterable, func=None, *, initial=None):
    if func is None and _is_settled(iterable):
        return iter(list(_accumulated(iterable, operator.add, initial)))
    return _accumulated(iterable, operator.add if func is None else func, initial)


def _accumulated(iterable, function, initial):
    source = iter(iterable)
    total = next(source, _END) if initial is None else initial
    if total is _END:
        return
    yield total
    for item in source:
        total = function(total, item)
        yield total


@twin_of(itertools.product)
def product(*iterables, repeat=1):
    pools = [tuple(pool) for pool in iterables] * repeat
    rows: list[tuple[Any, ...]] = [()]
    for pool in pools:
        rows = [(*row, item) for row in rows for item in pool]
    return iter(rows)


def _pick(make_positions, iterable, r):
    # Which positions are picked depends on the number of items alone, so that is done for real.
    pool = tuple(iterable)
    positions = make_positions(len(pool), len(pool) if r is None else r)
    return iter([tuple([pool[i] for i in row]) for row in positions])


def combination_positions(length: int, r: int) -> tuple[tuple[int, ...], ...]:
    """The positions that itertools.combinations picks from `length` items."""
    return tuple(itertools.combinations(range(length), r))


def replacement_positions(length: int, r: int) -> tuple[tuple[int, ...], ...]:
    """The positions that itertools.combinations_with_replacement picks from `length` items."""
    return tuple(itertools.combinations_with_replacement(range(length), r))


def permutation_positions(length: int, r: int) -> tuple[tuple[int, ...], ...]:
    """The positions that itertools.permutations picks from `length` items."""
    return tuple(itertools.permutations(range(length), r))


registry.fold(combination_positions, replacement_positions, permutation_positions)


@twin_of(itertools.combinations)
def combinations(iterable, r):
    return _pick(combination_positions, iterable, r)


@twin_of(itertools.combinations_with_replacement)
def combinations_with_replacement(iterable, r):
    return _pick(replacement_positions, iterable, r)


@twin_of(itertools.permutations)
def permutations(iterable, r=None):
    return _pick(permutation_positions, iterable, r)


@twin_of(itertools.pairwise)
def pairwise(iterable, /):
    if _is_settled(iterable):
        items = list(iterable)
        return zip(items[:-1], items[1:])
    return _pairs(iter(iterable))


def _pairs(source):
    left = next(source, _END)
    for right in source:
        yield left, right
        left = right


def batched(iterable, n, *, strict=False):
    if strict or n < 1:
        cannot_trace("`itertools.batched` with these arguments", "it may raise ValueError")
    return _batches(iterable, n)


def _batches(iterable, n):
    batch = []
    for item in iterable:
        batch.append(item)
        if len(batch) == n:
            yield tuple(batch)
            batch = []
    if batch:
        yield tuple(batch)


if hasattr(itertools, "batched"):  # from Python 3.12 on
    twin_of(itertools.batched)(batched)


@twin_of(itertools.starmap)
def starmap(function, iterable, /):
    return map(lambda args: function(*args), iterable)


@twin_of(itertools.filterfalse)
def filterfalse(function, iterable, /):
    return filter(lambda item: not (item if function is None else function(item)), iterable)


@twin_of(itertools.zip_longest)
def zip_longest(*iterables, fillvalue=None):
    columns = [iter(iterable) for iterable in iterables]
    left = [True] * len(columns)
    while True:
        row = []
        for position, column in enumerate(columns):
            item = next(column, _END) if left[position] else _END
            if item is _END:
                left[position] = False
            row.append(fillvalue if item is _END else item)
        if not any(left):
            return
        yield tuple(row)


@twin_of(itertools.compress)
def compress(data, selectors):
    return (item for item, selected in zip(data, selectors) if selected)


@twin_of(itertools.takewhile)
def takewhile(predicate, iterable, /):
    for item in iterable:
        if not predicate(item):
            return
        yield item


@twin_of(itertools.dropwhile)
def dropwhile(predicate, iterable, /):
    dropping = True
    for item in iterable:
        dropping = dropping and bool(predicate(item))
        if not dropping:
            yield item


# --- dataclasses and enums ----------------------------------------------------------------------------------------


def field_names(cls: type) -> tuple[str, ...]:
    """The names of a dataclass's fields."""
    return tuple(field.name for field in dataclasses.fields(cls))


def init_field_names(cls: type) -> tuple[str, ...] | None:
    """The names of a dataclass's fields; None when its `__init__` takes others or fewer than these."""
    declared = vars(cls)["__dataclass_fields__"].values()
    exact = all(field.init and field._field_type.name != "_FIELD_INITVAR" for field in declared)
    return field_names(cls) if exact else None


registry.fold(field_names, init_field_names)


@twin_of(dataclasses.replace)
def dataclass_replace(obj, /, **changes):
    names = init_field_names(type(obj))
    if names is None:
        return cannot_trace("`dataclasses.replace` of this class", "some fields are not arguments of `__init__`")
    values = {name: getattr(obj, name) for name in names}
    values.update(changes)
    return type(obj)(**values)


@twin_of(dataclasses.asdict)
def dataclass_asdict(obj, *, dict_factory=dict):
    return dict_factory([(name, _plain(getattr(obj, name), dict_factory)) for name in field_names(type(obj))])


def _plain(value, dict_factory):
    if isinstance(value, (int, float, complex, str, bytes, type(None))):
        return value
    if hasattr(type(value), "__dataclass_fields__"):
        return dataclass_asdict(value, dict_factory=dict_factory)
    if type(value) in (list, tuple):
        return type(value)([_plain(item, dict_factory) for item in value])
    if type(value) is dict:
        return {_plain(key, dict_factory): _plain(item, dict_factory) for key, item in value.items()}
    return cannot_trace("`dataclasses.asdict` of such a field", "it copies the value deeply")


@twin_of(enum.EnumType.__iter__)
def enum_iter(cls):
    return iter([cls._member_map_[name] for name in cls._member_names_])


# --- torch --------------------------------------------------------------------------------------------------------


@twin_of(torch.numel)
def numel(input):
    return input.numel()


@twin_of(real_assert)
def torch_assert(condition, message):
    if not condition:
        cannot_trace("an assertion that fails", "it raises AssertionError")
