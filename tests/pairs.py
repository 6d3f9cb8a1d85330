"""Owns the choice of parameter pairs that always run where all pairs take long: every value of both, not all
combinations."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from typing import Any

import pytest

Parameters = type(pytest.param())


def pairs(first: Iterable[Any], second: Iterable[Any], *, full: Collection[Any], always: Collection[Any]) -> list[Any]:
    """Returns every pair, for `parametrize`. A pair runs without --slow if its first is in `full` or its second in
    `always`.

    So each of `first` meets all of `always`, and each of `second` meets all of `full`. Values may be results of
    `pytest.param` with marks.
    """
    made = []
    for parts in itertools.product(first, second):
        one, other = (part.values[0] if isinstance(part, Parameters) else part for part in parts)
        marks = [mark for part in parts if isinstance(part, Parameters) for mark in part.marks]
        if one not in full and other not in always:
            marks.append(pytest.mark.slow)
        made.append(pytest.param(one, other, marks=marks))
    return made
