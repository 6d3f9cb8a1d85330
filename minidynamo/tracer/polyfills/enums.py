"""Owns the polyfills of enums: iteration over members, and calls with a value that no member has.

Calls with a member's value are not here: they are folded in `tracer/calls/construct.py`."""

# Polyfills are traced, not called, and accept all arguments of the original, so annotations would add nothing.
# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import enum
from typing import Any

from minidynamo.tracer.records.registry import cannot_trace, polyfill


@polyfill(enum.EnumType.__iter__)
def enum_iter(cls):
    return iter([cls._member_map_[name] for name in cls._member_names_])


def is_value_of(cls: type[enum.Enum], value: Any) -> bool:
    """Returns whether an enum has a member with this value, so that `_missing_` is not called."""
    if type(value) is cls:
        return True
    try:
        return value in cls._value2member_map_
    except TypeError:
        return any(member.value == value for member in cls)


def missing_member(cls, value):
    """Executes the end of `Enum.__new__`, for an enum with a user's `_missing_`."""
    if value in cls._value2member_map_:  # a former call of `_missing_` may have added it
        return cls._value2member_map_[value]
    try:
        found = cls._missing_(value)
    except ValueError:
        raise
    except Exception:
        cannot_trace("an error in `_missing_`", "It is raised in the context of another error.")
    if isinstance(found, cls):
        return found
    if found is not None:
        cannot_trace("the result of `_missing_`", "It is no member.")
    raise ValueError(f"{value!r} is not a valid {cls.__qualname__}")
