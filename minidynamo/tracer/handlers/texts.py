"""Owns `%` and `str.format`: Python formats constants while tracing, and twins in Python all that code of the program
writes.

Texts of numbers that differ from call to call are in `tracer/numbers/formatting.py`.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import Any

from minidynamo.tracer.calls.operators import folded
from minidynamo.tracer.handlers.local_texts import is_local, refuse_local_text
from minidynamo.tracer.handlers.values import constant, expect_constant, is_constant
from minidynamo.tracer.numbers.formatting import filled
from minidynamo.tracer.polyfills.texts import format_text, percent
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import as_constant, involves_own, key_named
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import DictVariable, TupleVariable


def _is_written_by_python(variable: VariableTracker) -> bool:
    return is_constant(variable) and not involves_own(variable, "__str__", "__repr__", "__format__")


@registry.method(str, "__mod__")
def _percent(tx: Tracer, self: VariableTracker, values: VariableTracker, /) -> VariableTracker:
    if _is_written_by_python(values):
        made = folded(tx, str.__mod__, [self, values], [as_constant(self), as_constant(values)], {})
        assert made is not None
        return made
    return tx.call(percent, [self, values])


@registry.method(str, "format")
def _format(tx: Tracer, self: VariableTracker, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    text = expect_constant(tx, self, "a format")
    made = filled(tx, text, args, kwargs)
    if made is not None:
        return made
    if not all(map(_is_written_by_python, (*args, *kwargs.values()))):
        named = DictVariable({key_named(name): value for name, value in kwargs.items()})
        return tx.call(format_text, [self, TupleVariable([*args]), named])
    values, shown = [as_constant(arg) for arg in args], {name: as_constant(value) for name, value in kwargs.items()}
    return _formatted(tx, text, [*values, *shown.values()], values, shown)


@registry.method(str, "format_map")
def _format_map(tx: Tracer, self: VariableTracker, mapping: VariableTracker, /) -> VariableTracker:
    text = expect_constant(tx, self, "a format")
    if not _is_written_by_python(mapping):
        return tx.call(format_text, [self, TupleVariable([]), mapping])
    named = as_constant(mapping)
    return _formatted(tx, text, named.values(), [], named)


def _formatted(tx: Tracer, text: str, parts: Iterable[Any], args: list[Any], named: Any) -> VariableTracker:
    """`text.format(*args, **named)`; which part a field shows is not looked into."""
    shown = [*parts, None]
    try:
        hows = [how for _, _, how, _ in string.Formatter().parse(text) if how]
        if any(is_local(value, how) for how in hows for value in shown):
            refuse_local_text(tx)
        return constant(text.format(*args, **named))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        tx.raises(error, exact=True)
