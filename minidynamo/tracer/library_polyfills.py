"""Owns the polyfills of library functions: math, copy, dataclasses, enum and torch.

What a polyfill is, and those of the builtins, are in `polyfills.py`; itertools is in `itertools_polyfills.py`.
"""

# Twins are traced, not called, and take whatever the original takes: annotations would say nothing.
# mypy: allow-untyped-defs, allow-untyped-calls
# No library function inside its own twin.

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import math

import torch

from minidynamo.compat import torch_assert as real_assert
from minidynamo.tracer import registry
from minidynamo.tracer.polyfills import cannot_trace, twin_of

# --- math and copy ----------------------------------------------------------------------------------------------------


@twin_of(math.prod)
def math_prod(iterable, /, *, start=1):
    for item in iterable:
        start = start * item
    return start


@twin_of(copy.copy)
def copy_copy(x):
    # Instances of other classes say how they are copied in too many ways.
    if type(x) in (list, dict, set, collections.deque, collections.OrderedDict, collections.defaultdict):
        return x.copy()
    if type(x) in (bool, int, float, complex, str, bytes, tuple, frozenset, type(None), slice, range):
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
