"""Owns the polyfills of the methods of dicts and OrderedDicts that update, merge and compare.

The other methods have handlers in `handlers/dicts.py`.
"""

# Twins are traced, not called, and take whatever the original takes: annotations would say nothing.
# mypy: allow-untyped-defs, allow-untyped-calls
# Loops instead of generator expressions, and no library function inside its own twin.

from __future__ import annotations

import collections

from minidynamo.tracer.polyfills.lists import same_or_equal, sequence_equal
from minidynamo.tracer.registry import polyfill, polyfill_class_method


@polyfill(dict.update, collections.OrderedDict.update)
def dict_update(self, other=(), /, **kwargs):
    if hasattr(other, "keys"):
        for key in other.keys():  # noqa: SIM118 (this is the protocol of dict.update)
            self[key] = other[key]
    else:
        for key, value in other:
            self[key] = value
    for key, value in kwargs.items():
        self[key] = value


@polyfill(collections.OrderedDict.setdefault)
def dict_setdefault(self, key, default=None, /):
    if key not in self:
        self[key] = default
    return self[key]


@polyfill(dict.__ior__, collections.OrderedDict.__ior__)
def dict_ior(self, other, /):
    self.update(other)
    return self


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
