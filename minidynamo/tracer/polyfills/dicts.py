"""Owns the polyfills of methods of dicts and of subclasses of OrderedDict that update, copy and compare.

Other methods are not here but have handlers (`handlers/dicts.py`)."""

# Polyfills are traced, not called, and accept all arguments of the original, so annotations would add nothing.
# mypy: allow-untyped-defs, allow-untyped-calls
# Loops instead of generator expressions, and no library function inside its own polyfill.

from __future__ import annotations

import collections

from minidynamo.tracer.polyfills.lists import same_or_equal, sequence_equal
from minidynamo.tracer.records.registry import polyfill_class_method


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
    made = type(self)()
    for key in list(collections.OrderedDict.__iter__(self)):
        made[key] = self[key]
    return made


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
