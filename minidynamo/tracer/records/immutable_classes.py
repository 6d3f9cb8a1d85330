"""Owns the classes of immutable objects whose equal values may be distinct objects: `is` distinguishes them.

`constants.py` decides which values are constants.
"""

from __future__ import annotations

import collections.abc
import datetime
import re
import types
from typing import Any

import numpy as np
import torch

# Numpy's scalar classes, without dates and records.
REAL_NUMPY_SCALARS: frozenset[type] = frozenset(np.dtype(letter).type for letter in "bhilqBHILQefd")
NUMPY_SCALARS = REAL_NUMPY_SCALARS | {np.bool_, np.complex64, np.complex128}

# The class of `date.isocalendar()`: a tuple whose constructor takes the items separately.
ISO_CALENDAR_DATE: Any = type(datetime.date.min.isocalendar())
CALLABLE_ALIAS: type = type(collections.abc.Callable[[], None])

_DISTINCT = frozenset(
    {
        *(int, float, complex, str, bytes, range, slice),
        *(torch.device, torch.finfo, torch.iinfo),
        *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
        *(re.Match, types.GenericAlias, types.UnionType, CALLABLE_ALIAS),
        *NUMPY_SCALARS,
    }
)


def may_be_distinct(value: object) -> bool:
    """Returns whether equal values of this class may be distinct objects."""
    if type(value) not in _DISTINCT:
        return False
    if isinstance(value, str | bytes):
        return len(value) > 0  # single letters in code are other objects than results of `chr`
    return not (type(value) is int and -5 <= value <= 256)
