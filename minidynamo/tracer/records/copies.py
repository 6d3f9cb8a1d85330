"""Owns copies of immutable objects: a constant that the program computes is a new object at each call.

`reconstruct/` finds the constants that leave a frame; a tracker knows the origin of its value.
"""

from __future__ import annotations

import collections.abc
import copy
import datetime
import functools
import operator
import re
import sys
import types
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import torch

# Numpy's scalar classes, without dates and records.
REAL_NUMPY_SCALARS: frozenset[type] = frozenset(np.dtype(letter).type for letter in "bhilqBHILQefd")
NUMPY_SCALARS = REAL_NUMPY_SCALARS | {np.bool_, np.complex64, np.complex128}


# The class of `date.isocalendar()`: a tuple whose constructor takes the items separately.
ISO_CALENDAR_DATE: Any = type(datetime.date.min.isocalendar())
CALLABLE_ALIAS: type = type(collections.abc.Callable[[], None])


def _limits(limits: torch.finfo | torch.iinfo) -> torch.finfo | torch.iinfo:
    return type(limits)(getattr(torch, limits.dtype))


def match_in(match: re.Match[Any], text: Any) -> re.Match[Any]:
    """Returns the same match in an equal text; `match` itself if neither a search nor a match of the whole text finds
    it."""
    pattern, where = match.re, (text, match.pos, match.endpos)
    again = chain(pattern.finditer(*where), (pattern.fullmatch(*where),))
    return next((other for other in again if other is not None and _groups(other) == _groups(match)), match)


def alias_of(alias: Any, args: tuple[Any, ...]) -> Any:
    """Returns the same generic class or union with these arguments."""
    if isinstance(alias, types.UnionType):
        return functools.reduce(operator.or_, args)
    made = types.GenericAlias(alias.__origin__, args)
    return next(iter(made)) if alias.__unpacked__ else made


def zone_of(zone: datetime.timezone, offset: datetime.timedelta, *name: str) -> datetime.timezone:
    """Returns the same time zone with this offset and name."""
    return datetime.timezone(offset, *name)


def clock_in(value: datetime.datetime | datetime.time, zone: datetime.tzinfo) -> datetime.datetime | datetime.time:
    """Returns the same local time in this time zone."""
    return value.replace(tzinfo=zone)


def _held_by_zone(zone: Any) -> list[tuple[str, object]]:
    return list(zip(("{0}.utcoffset(None)", "{0}.tzname(None)"), zone.__getinitargs__()))


# By class: the objects that a value holds and returns, each with an expression.
_PARTS: dict[type, Callable[[Any], list[tuple[str, object]]]] = {
    re.Match: lambda match: [("{0}.string", match.string)],
    **dict.fromkeys((types.GenericAlias, types.UnionType), lambda alias: [("{0}.__args__", alias.__args__)]),
    datetime.timezone: _held_by_zone,
    **dict.fromkeys(
        (datetime.datetime, datetime.time),
        lambda value: [("{0}.tzinfo", value.tzinfo)] if value.tzinfo is not None else [],
    ),
}


def parts_of(value: object) -> list[tuple[str, object]]:
    """Returns the objects that a value holds and returns, each with an expression in terms of `{0}`."""
    find = _PARTS.get(type(value))
    return [] if find is None else find(value)


def group_names(value: object) -> list[str]:
    """Returns the group names of a pattern or match. They live as long as the pattern."""
    pattern = value.re if isinstance(value, re.Match) else value
    return [*pattern.groupindex] if isinstance(pattern, re.Pattern) else []


def _groups(match: re.Match[Any]) -> tuple[object, ...]:
    return match.regs, match.lastindex


_COPIES: dict[type, Callable[[Any], Any]] = {
    **dict.fromkeys((int, float, complex), lambda value: operator.neg(operator.neg(value))),
    str: lambda value: "".join((value, "")),
    bytes: lambda value: bytes(bytearray(value)),
    range: lambda value: range(value.start, value.stop, value.step),
    slice: lambda value: slice(value.start, value.stop, value.step),
    torch.device: lambda value: torch.device(str(value)),
    torch.finfo: _limits,
    torch.iinfo: _limits,
    datetime.timedelta: lambda value: datetime.timedelta(value.days, value.seconds, value.microseconds),
    datetime.timezone: lambda value: datetime.timezone(*value.__getinitargs__()),
    **dict.fromkeys((datetime.date, datetime.datetime, datetime.time), lambda value: value.replace()),
    re.Match: lambda value: match_in(value, value.string),
    **dict.fromkeys((types.GenericAlias, types.UnionType), lambda value: alias_of(value, (*value.__args__, None)[:-1])),
    CALLABLE_ALIAS: copy.copy,
    **dict.fromkeys(NUMPY_SCALARS, lambda value: value.copy()),
}


def may_be_distinct(value: object) -> bool:
    """Returns whether equal values of this class may be distinct objects."""
    if type(value) not in _COPIES:
        return False
    if isinstance(value, str | bytes):
        return len(value) > 0  # single letters in code are other objects than results of `chr`
    return not (type(value) is int and -5 <= value <= 256)


def fresh_copy(value: Any) -> Any:
    """Returns a new object equal to `value`; `value` itself if a copy is impossible."""
    copy = _COPIES.get(type(value))
    return value if copy is None else copy(value)


def is_interned(text: str) -> bool:
    """Returns whether the text is Python's interned object for its contents."""
    return sys.intern(fresh_copy(text)) is text


def _kept_error() -> str:
    """Returns the message for an index beyond the end of a list: the only message text that the interpreter reuses."""
    try:
        return str([][0])
    except IndexError as error:
        return error.args[0]  # type: ignore[no-any-return]


SHORTER_LIST = _kept_error()


def is_new_object(value: object) -> bool:
    """Returns whether an operation that returns this very object `value` returns a different object each time."""
    if not may_be_distinct(value):
        return False
    if isinstance(value, str):
        kept = (repr(True), repr(False), chr(ord(value[0])), SHORTER_LIST)
        is_kept = any(value is text for text in kept) or is_interned(value)
    else:
        is_kept = isinstance(value, bytes) and (value + value)[:1] is value
    return not is_kept and fresh_copy(value) is not value
