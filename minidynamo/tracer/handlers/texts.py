"""Owns `%` and `str.format`: Python formats constants during capture; polyfills format objects with code of the
program.

Texts of symbolic numbers are in `tracer/numbers/formatting.py`.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import Any

from minidynamo.tracer.calls.operators import folded
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.local_texts import depends_on_locale, refuse_local_text
from minidynamo.tracer.handlers.values import constant, expect_constant, is_constant
from minidynamo.tracer.numbers.formatting import filled
from minidynamo.tracer.polyfills.texts import format_text, percent
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import as_constant, contains_override, keyword_key
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import DictVariable, TupleVariable


def _is_formatted_by_python(variable: VariableTracker) -> bool:
    return is_constant(variable) and not contains_override(variable, "__str__", "__repr__", "__format__")


@registry.method(str, "__mod__")
def _percent(tx: Tracer, self: VariableTracker, values: VariableTracker, /) -> VariableTracker:
    if _is_formatted_by_python(values):
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
    if not all(map(_is_formatted_by_python, (*args, *kwargs.values()))):
        named = DictVariable({keyword_key(name): value for name, value in kwargs.items()})
        return tx.call(format_text, [self, TupleVariable([*args]), named])
    values, shown = [as_constant(arg) for arg in args], {name: as_constant(value) for name, value in kwargs.items()}
    return _formatted(tx, text, [*values, *shown.values()], values, shown)


@registry.method(str, "format_map")
def _format_map(tx: Tracer, self: VariableTracker, mapping: VariableTracker, /) -> VariableTracker:
    text = expect_constant(tx, self, "a format")
    if not _is_formatted_by_python(mapping):
        return tx.call(format_text, [self, TupleVariable([]), mapping])
    named = as_constant(mapping)
    return _formatted(tx, text, named.values(), [], named)


def _formatted(tx: Tracer, text: str, parts: Iterable[Any], args: list[Any], named: Any) -> VariableTracker:
    """Returns `text.format(*args, **named)`; does not check which part a field shows."""
    shown = [*parts, None]
    try:
        hows = [how for _, _, how, _ in string.Formatter().parse(text) if how]
        if any(depends_on_locale(value, how) for how in hows for value in shown):
            refuse_local_text(tx)
        return constant(text.format(*args, **named))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        tx.raises(error, exact=True)
