"""Owns `%` and `str.format`: Python formats constants during capture. For objects whose class formats them with code of
the program, only `%s` is traced; other formats break the graph, and so do texts that depend on settings of the process,
such as the locale.

Texts of symbolic numbers are in `tracer/numbers/formatting.py`.
"""

from __future__ import annotations

import datetime
import string
from collections.abc import Iterable
from typing import Any, NoReturn

from minidynamo.tracer.calls.operators import folded
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.values import constant, expect_constant, is_constant
from minidynamo.tracer.numbers.formatting import format_text
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import as_constant, contains_override
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import TupleVariable


def _is_formatted_by_python(variable: VariableTracker) -> bool:
    return is_constant(variable) and not contains_override(variable, "__str__", "__repr__", "__format__")


@registry.method(str, "__mod__")
def _percent(tx: Tracer, self: VariableTracker, values: VariableTracker, /) -> VariableTracker:
    if _is_formatted_by_python(values):
        text = folded(tx, str.__mod__, [self, values], [as_constant(self), as_constant(values)], {})
        assert text is not None
        return text
    pieces = str(expect_constant(tx, self, "a format")).split("%s")
    operands = values.items.lazy() if isinstance(values, TupleVariable) and values.cls is tuple else [values]
    if "%" in "".join(pieces) or len(operands) != len(pieces) - 1:
        _refuse_objects(tx)
    texts: list[VariableTracker] = [constant(pieces[0])]
    for value, piece in zip(operands, pieces[1:]):
        texts += [tx.call(str, [value]), constant(piece)]
    return tx.call_method(constant(""), "join", [TupleVariable(texts)])


def _refuse_objects(tx: Tracer) -> NoReturn:
    why = "The class of a value decides on its text."
    tx.break_graph("MD234", "an object is formatted", why=why, fix="Use an f-string.")


@registry.method(str, "format")
def _format(tx: Tracer, self: VariableTracker, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    text = expect_constant(tx, self, "a format")
    formatted = format_text(tx, text, args, kwargs)
    if formatted is not None:
        return formatted
    if not all(map(_is_formatted_by_python, (*args, *kwargs.values()))):
        return _refuse_objects(tx)
    values, named = [as_constant(arg) for arg in args], {name: as_constant(value) for name, value in kwargs.items()}
    return _formatted(tx, text, [*values, *named.values()], values, named)


@registry.method(str, "format_map")
def _format_map(tx: Tracer, self: VariableTracker, mapping: VariableTracker, /) -> VariableTracker:
    text = expect_constant(tx, self, "a format")
    if not _is_formatted_by_python(mapping):
        return _refuse_objects(tx)
    named = as_constant(mapping)
    return _formatted(tx, text, named.values(), [], named)


def _formatted(tx: Tracer, text: str, parts: Iterable[Any], args: list[Any], named: Any) -> VariableTracker:
    """Returns `text.format(*args, **named)`. Breaks the graph if the text of any of `parts` would depend on the locale,
    whether or not a field shows that part."""
    values = [*parts, None]
    try:
        specs = [spec for _, _, spec, _ in string.Formatter().parse(text) if spec]
        if any(depends_on_locale(value, spec) for spec in specs for value in values):
            refuse_local_text(tx)
        return constant(text.format(*args, **named))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        tx.raises(error, exact=True)


_DATES = (datetime.date, datetime.time)


def depends_on_locale(value: object, spec: str) -> bool:
    """Returns whether `format(value, spec)` depends on the locale: names of months, digit separators."""
    return isinstance(value, _DATES) if "%" in spec else spec.endswith("n")


def refuse_local_text(tx: Tracer) -> NoReturn:
    """Breaks the graph at a text that depends on the locale or the time zone."""
    tx.break_graph(
        "MD233",
        "a text that depends on the locale or the time zone",
        why="Both may change until the program runs this line.",
        fix="Move the call out of the compiled function, or accept the break.",
    )


def reads_settings(tx: Tracer, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    """Breaks the graph: the handler of functions that always read settings."""
    return refuse_local_text(tx)


registry.method(datetime.datetime, "astimezone", "fromtimestamp", "timestamp")(reads_settings)
registry.method(datetime.date, "fromtimestamp", "strftime")(reads_settings)
registry.method(datetime.time, "strftime")(reads_settings)


@registry.method(datetime.time, "__format__")
@registry.method(datetime.date, "__format__")
def _format_date(tx: Tracer, self: VariableTracker, spec: VariableTracker, /) -> VariableTracker:
    return tx.call(format, [self, spec])
