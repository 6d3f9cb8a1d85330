"""Owns the polyfills of the methods of dicts and of subclasses of OrderedDict that update, copy and compare.

The other methods have handlers in `handlers/dicts.py`.
"""

# Twins are traced, not called, and take whatever the original takes: annotations would say nothing.
# mypy: allow-untyped-defs, allow-untyped-calls
# Loops instead of generator expressions, and no library function inside its own twin.

from __future__ import annotations

import collections

from minidynamo.tracer.polyfills.lists import same_or_equal, sequence_equal
from minidynamo.tracer.records.registry import polyfill_class_method


def dict_update(self, other=(), /, **kwargs):
    """`update` by the methods of the mapping; a dict that is no instance of a subclass stores the entries raw."""
    if hasattr(other, "keys"):
        for key in other.keys():  # noqa: SIM118 (this is the protocol of dict.update)
            self[key] = other[key]
    else:
        for key, value in other:
            self[key] = value
    for key, value in kwargs.items():
        self[key] = value


def ordered_setdefault(self, key, default=None, /):
    """`setdefault` of an instance of a subclass of OrderedDict."""
    if key in self:
        return self[key]
    self[key] = default
    return default


def ordered_ior(self, other, /):
    """`|=` of an instance of a subclass of OrderedDict."""
    dict_update(self, other)
    return self


def ordered_copy(self, /):
    """`copy` of an instance of a subclass of OrderedDict."""
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
    """Whether two dictionaries hold equal values under the same keys, in any order."""
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
    """Equality of two OrderedDicts: their order counts."""
    return dict_equal(left, right) and sequence_equal(list(left), list(right))
