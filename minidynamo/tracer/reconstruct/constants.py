"""Owns which object a constant is in a residual program: the one that it is where the program runs as written.

A literal stays one object in all calls: the text shows its value, and the object itself is pinned into the code. What
the program computes is another object at each call, made by `anew`.
"""

from __future__ import annotations

import datetime
import math
import re
import types
from collections.abc import Callable
from typing import Any

from minidynamo.tracer.reconstruct.builders import BUILDERS, builds, keeps
from minidynamo.tracer.records.copies import (
    alias_of,
    anew,
    can_be_two,
    clock_in,
    is_interned,
    is_made_anew,
    match_in,
    zone_of,
)
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import TupleVariable

_LONGEST_INT = 10_000  # bits; Python refuses to write down longer ones


def is_new(variable: VariableTracker) -> bool:
    """Whether it is a constant for which the program makes another object at each call."""
    if not isinstance(variable, ConstantVariable) or variable.lasting or variable.source is not None:
        return False
    return is_made_anew(variable.here)


# What makes another one of a constant that is there, and of what that is made of.
_MADE_LIKE: dict[type, Callable[..., Any]] = {
    re.Match: match_in,
    types.GenericAlias: alias_of,
    types.UnionType: alias_of,
    datetime.timezone: zone_of,
    datetime.datetime: clock_in,
    datetime.time: clock_in,
}


@builds(ConstantVariable, hint="value")
def _constant(rebuild: Any, variable: ConstantVariable) -> str:
    """Only those that are new are built."""
    if variable.made_of:
        parts, make = rebuild.values(variable.made_of), _MADE_LIKE.get(variable.python_type)
        if type(variable.here) is types.UnionType:  # it makes a tuple of its own
            parts = BUILDERS[TupleVariable](rebuild, variable.made_of[0])
        if make is None:
            return f"{rebuild.constant(variable.python_type)}({parts})"
        return f"{rebuild.names.constant(make, make.__name__)}({rebuild.constant(variable.here)}, {parts})"
    spelled = spelling(variable.here)
    return f"{rebuild.names.constant(anew, 'anew')}({spelled or rebuild.constant(variable.here)})"


@keeps(ConstantVariable)
def _parts_of_constant(variable: ConstantVariable) -> dict[str, VariableTracker]:
    return {"__args__": variable.made_of[0]} if type(variable.here) is types.UnionType and variable.made_of else {}


def spelling(value: object) -> str | None:
    """A literal that equals `value`; None where there is none."""
    if value is None or type(value) in (bool, str, bytes):
        return repr(value)
    if (type(value) is int and value.bit_length() < _LONGEST_INT) or (type(value) is float and math.isfinite(value)):
        return repr(value)
    if type(value) is not tuple:
        return None
    parts = [spelling(part) for part in value]
    return None if None in parts else f"({''.join(f'{part}, ' for part in parts)})"


class Pins:
    """The objects that the literals of a text stand for: Python makes equal literals of one text one object."""

    def __init__(self) -> None:
        self._objects: dict[tuple[type, str], object] = {}

    def literal(self, value: object) -> str | None:
        """A literal that is `value` itself; None where there is none, or it stands for another object."""
        spelled = spelling(value)
        if spelled is None or not (can_be_two(value) or type(value) is tuple):
            return spelled
        if isinstance(value, str) and _is_like_a_name(value):
            return spelled if is_interned(value) else None
        return spelled if self._objects.setdefault((type(value), repr(value)), value) is value else None

    def put_into(self, function: types.FunctionType) -> None:
        """Have the literals in the code of `function` be the objects."""
        if self._objects:
            code = function.__code__
            function.__code__ = code.replace(co_consts=tuple(map(self._object, code.co_consts)))

    def _object(self, literal: Any) -> Any:
        if type(literal) in (int, float, str, bytes, tuple):
            pinned = self._objects.get((type(literal), repr(literal)))
            if pinned is not None:
                return pinned
        return tuple(map(self._object, literal)) if type(literal) is tuple else literal


def _is_like_a_name(text: str) -> bool:
    """Whether Python interns the text where it is a literal."""
    return text.isascii() and text.replace("_", "a").isalnum()
