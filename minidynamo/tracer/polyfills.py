"""Owns the polyfills: plain Python twins of builtins and library functions, which are traced instead of them.

It knows nothing of trackers; a twin is ordinary Python with the signature and the results of what it stands for, and
the registry maps the one to the other. Generators are not traced, so a twin of a lazy function takes its items at once
and returns an iterator over the finished list. What a twin cannot do it hands to `cannot_trace`, which breaks the
graph.
"""

# Twins are traced, not called, and take whatever the original takes: annotations would say nothing.
# mypy: allow-untyped-defs, allow-untyped-calls
# Loops instead of generator expressions, and no library function inside its own twin.
# ruff: noqa: SIM110, SIM401, RUF007

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import functools
import itertools
import math
import operator
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from minidynamo.compat import torch_assert as real_assert
from minidynamo.tracer import registry

Twin = TypeVar("Twin", bound=Callable[..., Any])


def twin_of(*originals: Callable[..., Any]) -> Callable[[Twin], Twin]:
    """Trace the decorated function wherever the program calls one of `originals`, methods of C classes included."""

    def register(twin: Twin) -> Twin:
        for original in originals:
            registry.polyfill(original)(twin)
            owner = getattr(original, "__objclass__", None)
            if owner is not None:
                handler = functools.partial(_call_twin, twin=twin)
                registry.method(owner, original.__name__)(handler)
        return twin

    return register


def _call_twin(tx, /, *args, twin, **kwargs):
    return tx.call(twin, args, kwargs)


def cannot_trace(what: str, why: str) -> Any:
    """Break the graph at the call of the twin. The tracer handles this function; it never runs while tracing."""
    raise NotImplementedError(f"{what}: {why}")


def unordered_items(items):
    """The items of a set, in any order: for results that do not depend on the order.

    The tracer handles this function. A plain loop over a set breaks the graph, because equal sets may iterate in
    different orders.
    """
    return list(items)


def _all_items(iterable):
    return unordered_items(iterable) if isinstance(iterable, (set, frozenset)) else list(iterable)


# --- builtins -----------------------------------------------------------------------------------------------------


@twin_of(any)
def any_(iterable, /):
    for item in iterable:
        if item:
            return True
    return False


@twin_of(all)
def all_(iterable, /):
    for item in iterable:
        if not item:
            return False
    return True


def sum_of_numbers(numbers: tuple[complex, ...], start: complex) -> complex:
    """What `sum` gives; the tracer runs it."""
    return sum(numbers, start)


@twin_of(sum)
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
    items = (_all_items(args[0]) if key is None else list(args[0])) if len(args) == 1 else list(args)
    if not items:
        if not default:
            cannot_trace("`min` or `max` of nothing", "it raises ValueError")
        return default["default"]
    best = items[0]
    best_key = best if key is None else key(best)
    for item in items[1:]:
        item_key = item if key is None else key(item)
        if is_better(item_key, best_key):
            best, best_key = item, item_key
    return best


@twin_of(min)
def min_(*args, key=None, **default):
    return _extreme(operator.lt, args, key, default)


@twin_of(max)
def max_(*args, key=None, **default):
    return _extreme(operator.gt, args, key, default)


@twin_of(operator.abs)
def operator_abs(a, /):
    return abs(a)


@twin_of(sorted)
def sorted_(iterable, /, *, key=None, reverse=False):
    # Only without a key do equal items of a set not exist, so that its order cannot show.
    result = _all_items(iterable) if key is None else list(iterable)
    result.sort(key=key, reverse=reverse)
    return result


@twin_of(math.prod)
def math_prod(iterable, /, *, start=1):
    for item in iterable:
        start = start * item
    return start


# --- list, tuple and deque ----------------------------------------------------------------------------------------


@twin_of(list.extend, collections.deque.extend)
def list_extend(self, iterable, /):
    for item in list(iterable):
        self.append(item)


@twin_of(list.__iadd__, collections.deque.__iadd__)
def list_iadd(self, iterable, /):
    self.extend(iterable)
    return self


@twin_of(collections.deque.extendleft)
def deque_extendleft(self, iterable, /):
    for item in list(iterable):
        self.appendleft(item)


@twin_of(collections.deque.rotate)
def deque_rotate(self, n=1, /):
    if self:
        for _ in range(n % len(self)):
            self.appendleft(self.pop())


@twin_of(list.index, tuple.index, collections.deque.index)
def sequence_index(self, value, start=0, stop=None, /):
    length = len(self)
    stop = length if stop is None else stop
    first = max(start + length, 0) if start < 0 else start
    last = stop + length if stop < 0 else min(stop, length)
    for position in range(first, last):
        item = self[position]
        if item is value or item == value:
            return position
    return cannot_trace("`index` of a value that is not there", "it raises ValueError")


@twin_of(list.count, tuple.count, collections.deque.count)
def sequence_count(self, value, /):
    found = 0
    for item in self:
        if item is value or item == value:
            found += 1
    return found


@twin_of(list.__contains__, tuple.__contains__, collections.deque.__contains__)
def sequence_contains(self, value, /):
    for item in self:
        if item is value or item == value:
            return True
    return False


@twin_of(list.remove, collections.deque.remove)
def list_remove(self, value, /):
    del self[sequence_index(self, value)]


def sequence_equal(left, right):
    """Whether two sequences of the same kind are equal, element by element as CPython compares them."""
    if len(left) != len(right):
        return False
    for a, b in zip(left, right):
        if not (a is b or a == b):
            return False
    return True


def sequence_compare(compare, left, right):
    """`compare` (operator.lt and its kin) of two sequences: decided by the first elements that differ."""
    for a, b in zip(left, right):
        if not (a is b or a == b):
            return compare(a, b)
    return compare(len(left), len(right))


# --- dict ---------------------------------------------------------------------------------------------------------


@twin_of(dict.update, collections.OrderedDict.update)
def dict_update(self, other=(), /, **kwargs):
    if hasattr(other, "keys"):
        for key in other.keys():  # noqa: SIM118 (this is the protocol of dict.update)
            self[key] = other[key]
    else:
        for key, value in other:
            self[key] = value
    for key, value in kwargs.items():
        self[key] = value


@twin_of(dict.setdefault, collections.OrderedDict.setdefault)
def dict_setdefault(self, key, default=None, /):
    if key not in self:
        self[key] = default
    return self[key]


@twin_of(dict.get)
def dict_get(self, key, default=None, /):
    return self[key] if key in self else default


@twin_of(dict.__ior__, collections.OrderedDict.__ior__)
def dict_ior(self, other, /):
    self.update(other)
    return self


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
        if not (value is other or value == other):
            return False
    return True


def ordered_dict_equal(left, right):
    """Equality of two OrderedDicts: their order counts."""
    return dict_equal(left, right) and sequence_equal(list(left), list(right))


# --- set ----------------------------------------------------------------------------------------------------------


@twin_of(set.update)
def set_update(self, *others):
    for other in others:
        for item in _all_items(other):
            self.add(item)


@twin_of(set.difference_update)
def set_difference_update(self, *others):
    for other in others:
        for item in _all_items(other):
            self.discard(item)


@twin_of(set.intersection_update)
def set_intersection_update(self, *others):
    for other in others:
        kept = set(other)
        for item in unordered_items(self):
            if item not in kept:
                self.discard(item)


@twin_of(set.symmetric_difference_update)
def set_symmetric_difference_update(self, other, /):
    for item in unordered_items(set(other)):
        if item in self:
            self.discard(item)
        else:
            self.add(item)


def _set_result(like, items):
    return frozenset(items) if isinstance(like, frozenset) else items


@twin_of(set.union, frozenset.union)
def set_union(self, *others):
    result = set(self)
    set_update(result, *others)
    return _set_result(self, result)


@twin_of(set.difference, frozenset.difference)
def set_difference(self, *others):
    result = set(self)
    set_difference_update(result, *others)
    return _set_result(self, result)


@twin_of(set.intersection, frozenset.intersection)
def set_intersection(self, *others):
    result = set(self)
    set_intersection_update(result, *others)
    return _set_result(self, result)


@twin_of(set.symmetric_difference, frozenset.symmetric_difference)
def set_symmetric_difference(self, other, /):
    result = set(self)
    set_symmetric_difference_update(result, other)
    return _set_result(self, result)


@twin_of(set.issubset, frozenset.issubset)
def set_issubset(self, other, /):
    other = set(other)
    for item in unordered_items(self):
        if item not in other:
            return False
    return True


@twin_of(set.issuperset, frozenset.issuperset)
def set_issuperset(self, other, /):
    for item in _all_items(other):
        if item not in self:
            return False
    return True


def set_equal(left, right):
    """Whether two sets hold the same items."""
    return len(left) == len(right) and set_issubset(left, right)


@twin_of(set.isdisjoint, frozenset.isdisjoint)
def set_isdisjoint(self, other, /):
    for item in _all_items(other):
        if item in self:
            return False
    return True


# --- functools, itertools, copy -----------------------------------------------------------------------------------


@twin_of(functools.reduce)
def reduce(function, iterable, /, *initial):
    items = list(initial) + list(iterable)
    if not items:
        cannot_trace("`reduce` of nothing", "it raises TypeError")
    result = items[0]
    for item in items[1:]:
        result = function(result, item)
    return result


@twin_of(itertools.chain)
def chain(*iterables):
    return chain_from_iterable(iterables)


def chain_from_iterable(iterables, /):
    return iter([item for iterable in iterables for item in iterable])


@twin_of(itertools.repeat)
def repeat(object, *times):
    if not times:
        cannot_trace("`itertools.repeat` without end", "its items are only known one by one")
    return iter([object] * times[0])


@twin_of(itertools.islice)
def islice(iterable, /, *bounds):
    part = slice(*bounds)
    start = 0 if part.start is None else part.start
    step = 1 if part.step is None else part.step
    source = iter(iterable)
    if part.stop is None:
        return iter(list(source)[start::step])
    taken = []
    # Not one item more than islice itself takes: the source may be used again afterwards.
    for _, item in zip(range(part.stop), source):
        taken.append(item)
    return iter(taken[start::step])


@twin_of(itertools.accumulate)
def accumulate(iterable, func=None, *, initial=None):
    items = list(iterable) if initial is None else [initial, *iterable]
    function = operator.add if func is None else func
    result = items[:1]
    for item in items[1:]:
        result.append(function(result[-1], item))
    return iter(result)


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
    items = list(iterable)
    return zip(items[:-1], items[1:])


def batched(iterable, n):
    items = list(iterable)
    return iter([tuple(items[start : start + n]) for start in range(0, len(items), n)])


if hasattr(itertools, "batched"):  # from Python 3.12 on
    twin_of(itertools.batched)(batched)


@twin_of(itertools.starmap)
def starmap(function, iterable, /):
    return iter([function(*args) for args in iterable])


@twin_of(itertools.zip_longest)
def zip_longest(*iterables, fillvalue=None):
    columns = [list(column) for column in iterables]
    length = 0
    for column in columns:
        length = max(length, len(column))
    for column in columns:
        column.extend([fillvalue] * (length - len(column)))
    return zip(*columns)


@twin_of(itertools.filterfalse)
def filterfalse(function, iterable, /):
    return iter([item for item in iterable if not (item if function is None else function(item))])


@twin_of(itertools.compress)
def compress(data, selectors):
    return iter([item for item, selected in zip(data, selectors) if selected])


@twin_of(itertools.takewhile)
def takewhile(predicate, iterable, /):
    taken = []
    for item in iterable:
        if not predicate(item):
            break
        taken.append(item)
    return iter(taken)


@twin_of(itertools.dropwhile)
def dropwhile(predicate, iterable, /):
    kept = []
    dropping = True
    for item in iterable:
        dropping = dropping and bool(predicate(item))
        if not dropping:
            kept.append(item)
    return iter(kept)


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
    if isinstance(x, (int, float, complex, str, bytes, tuple, frozenset, type(None), slice, range)):
        return x
    return cannot_trace("`copy.copy` of this object", "its class decides how it is copied")


# --- dataclasses and enums ----------------------------------------------------------------------------------------


def field_names(cls: type) -> tuple[str, ...]:
    """The names of a dataclass's fields."""
    return tuple(field.name for field in dataclasses.fields(cls))


def init_field_names(cls: type) -> tuple[str, ...] | None:
    """The names of a dataclass's fields; None when its `__init__` takes others or fewer than these."""
    declared = vars(cls)["__dataclass_fields__"].values()
    exact = all(field.init and field._field_type.name != "_FIELD_INITVAR" for field in declared)
    return field_names(cls) if exact else None


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


# Pure functions of constants that twins call; the tracer runs them.
FOLDED_BY_POLYFILLS = (
    sum_of_numbers,
    combination_positions,
    replacement_positions,
    permutation_positions,
    field_names,
    init_field_names,
)

# A class method is a new object at each access, so these are found by class and name.
CLASS_METHODS: dict[tuple[type, str], Callable[..., Any]] = {
    (dict, "fromkeys"): dict_fromkeys,
    (itertools.chain, "from_iterable"): chain_from_iterable,
}
