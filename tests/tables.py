"""Owns tables of programs: classes that only collect functions."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any


def functions_of(table: type) -> list[Callable[..., Any]]:
    """Returns the functions of a class, in order, unbound."""
    return [value for value in vars(table).values() if isinstance(value, types.FunctionType)]
