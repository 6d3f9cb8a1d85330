"""Owns the polyfills of enums: their members in order, and what an enum does with a value that none of them has.

Calls of enums that have a member for the value are folded in `tracer/calls/construct.py`.
"""

# Twins are traced, not called, and take whatever the original takes: annotations would say nothing.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import enum
from typing import Any

from minidynamo.tracer.polyfills.refusal import cannot_trace
from minidynamo.tracer.records.registry import polyfill


@polyfill(enum.EnumType.__iter__)
def enum_iter(cls):
    return iter([cls._member_map_[name] for name in cls._member_names_])


def is_value_of(cls: type[enum.Enum], value: Any) -> bool:
    """Whether an enum has a member for this value, so that its `_missing_` is not asked."""
    if type(value) is cls:
        return True
    try:
        return value in cls._value2member_map_
    except TypeError:
        return any(member.value == value for member in cls)


def missing_member(cls, value):
    """The end of `Enum.__new__`, for an enum whose `_missing_` the program has written."""
    if value in cls._value2member_map_:  # `_missing_` may have put it there in another call
        return cls._value2member_map_[value]
    try:
        found = cls._missing_(value)
    except ValueError:
        raise
    except Exception:
        cannot_trace("an error in `_missing_`", "It is raised in the context of another one.")
    if isinstance(found, cls):
        return found
    if found is not None:
        cannot_trace("what `_missing_` has given", "It is no member.")
    raise ValueError(f"{value!r} is not a valid {cls.__qualname__}")
