"""Owns which pairs of parameters always run where all of them take long: every value of both, not each with each."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from typing import Any

import pytest

Parameters = type(pytest.param())


def pairs(first: Iterable[Any], second: Iterable[Any], *, full: Collection[Any], always: Collection[Any]) -> list[Any]:
    """Every pair, for `parametrize`. A pair runs without --slow if its first is in `full` or its second in `always`.

    So each of `first` meets those in `always`, and each of `second` those in `full`. Either may be what `pytest.param`
    makes of a value and marks.
    """
    made = []
    for parts in itertools.product(first, second):
        one, other = (part.values[0] if isinstance(part, Parameters) else part for part in parts)
        marks = [mark for part in parts if isinstance(part, Parameters) for mark in part.marks]
        if one not in full and other not in always:
            marks.append(pytest.mark.slow)
        made.append(pytest.param(one, other, marks=marks))
    return made
