"""Owns the identity of constants in a residual program: the same object as in eager.

A literal is one object in all calls: the text shows its value, and the object itself is put into the code. A constant
that the program computes is a new object in each call, made by `fresh_copy`. Containers are not here
(`containers.py`)."""

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
    clock_in,
    fresh_copy,
    is_interned,
    is_new_object,
    match_in,
    may_be_distinct,
    zone_of,
)
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import TupleVariable

_LONGEST_INT = 10_000  # bits; Python refuses to print longer ints


def is_new(variable: VariableTracker) -> bool:
    """Returns whether this is a constant that the program makes anew in each call."""
    if not isinstance(variable, ConstantVariable) or variable.lasting or variable.source is not None:
        return False
    return is_new_object(variable.unguarded_value)


# Class -> function that makes a new object from an existing constant and the parts.
_REMAKERS: dict[type, Callable[..., Any]] = {
    re.Match: match_in,
    types.GenericAlias: alias_of,
    types.UnionType: alias_of,
    datetime.timezone: zone_of,
    datetime.datetime: clock_in,
    datetime.time: clock_in,
}


@builds(ConstantVariable, hint="value")
def _constant(rebuild: Any, variable: ConstantVariable) -> str:
    """Builds a new object; other constants are named."""
    if variable.made_of:
        parts, make = rebuild.values(variable.made_of), _REMAKERS.get(variable.python_type)
        if type(variable.unguarded_value) is types.UnionType:  # the `|` of types makes a tuple of its own
            parts = BUILDERS[TupleVariable](rebuild, variable.made_of[0])
        if make is None:
            return f"{rebuild.constant(variable.python_type)}({parts})"
        return f"{rebuild.names.constant(make, make.__name__)}({rebuild.constant(variable.unguarded_value)}, {parts})"
    spelled = spelling(variable.unguarded_value)
    return (
        f"{rebuild.names.constant(fresh_copy, 'fresh_copy')}({spelled or rebuild.constant(variable.unguarded_value)})"
    )


@keeps(ConstantVariable)
def _parts_of_constant(variable: ConstantVariable) -> dict[str, VariableTracker]:
    return (
        {"__args__": variable.made_of[0]}
        if type(variable.unguarded_value) is types.UnionType and variable.made_of
        else {}
    )


def spelling(value: object) -> str | None:
    """Returns a literal that equals `value`; None if there is none."""
    if value is None or type(value) in (bool, str, bytes):
        return repr(value)
    if (type(value) is int and value.bit_length() < _LONGEST_INT) or (type(value) is float and math.isfinite(value)):
        return repr(value)
    if type(value) is not tuple:
        return None
    parts = [spelling(part) for part in value]
    return None if None in parts else f"({''.join(f'{part}, ' for part in parts)})"


class Pins:
    """The objects of the literals in a text: Python makes equal literals of a text a single object."""

    def __init__(self) -> None:
        self._objects: dict[tuple[type, str], object] = {}

    def literal(self, value: object) -> str | None:
        """Returns a literal that is `value` itself; None if impossible, or if the literal is another object already."""
        spelled = spelling(value)
        if spelled is None or not (may_be_distinct(value) or type(value) is tuple):
            return spelled
        if isinstance(value, str) and _is_like_a_name(value):
            return spelled if is_interned(value) else None
        return spelled if self._objects.setdefault((type(value), repr(value)), value) is value else None

    def replace_constants_of(self, function: types.FunctionType) -> None:
        """Replaces the constants in the code of `function` by the objects."""
        if self._objects:
            code = function.__code__
            function.__code__ = code.replace(co_consts=tuple(map(self._object, code.co_consts)))

    def _object(self, literal: Any) -> Any:
        if type(literal) in (int, float, str, bytes, tuple):
            embedded = self._objects.get((type(literal), repr(literal)))
            if embedded is not None:
                return embedded
        return tuple(map(self._object, literal)) if type(literal) is tuple else literal


def _is_like_a_name(text: str) -> bool:
    """Returns whether Python interns a literal with this text."""
    return text.isascii() and text.replace("_", "a").isalnum()
