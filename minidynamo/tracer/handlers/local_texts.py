"""Owns which formatted text depends on settings of the process, its locale above all, and cannot be made while tracing.

All other formatting of constants is simply done, in `builtins.py` and `constants.py`.
"""

from __future__ import annotations

import datetime
import string
from collections.abc import Iterable
from typing import Any, NoReturn

from minidynamo.tracer import registry
from minidynamo.tracer.handlers.values import constant, expect_constant
from minidynamo.tracer.number_texts import filled
from minidynamo.tracer.protocol import Tracer
from minidynamo.variables.base import VariableTracker

_DATES = (datetime.date, datetime.time)


def is_local(value: object, how: str) -> bool:
    """Whether `format(value, how)` speaks the language of the user: the names of months, the sign between digits."""
    return isinstance(value, _DATES) if "%" in how else how.endswith("n")


def refuse_local_text(tx: Tracer) -> NoReturn:
    """Let Python make text that depends on the locale or the time zone."""
    tx.break_graph(
        "MD233",
        "a text in local terms",
        why="The time zone and the language are those of the moment at which the program runs.",
        fix="move it out of the compiled function, or accept the break",
    )


def reads_settings(tx: Tracer, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    """The handler of what always reads them."""
    return refuse_local_text(tx)


registry.method(datetime.datetime, "astimezone", "fromtimestamp", "timestamp")(reads_settings)
registry.method(datetime.date, "fromtimestamp", "strftime")(reads_settings)
registry.method(datetime.time, "strftime")(reads_settings)


@registry.method(datetime.time, "__format__")
@registry.method(datetime.date, "__format__")
def _format_date(tx: Tracer, self: VariableTracker, how: VariableTracker, /) -> VariableTracker:
    return tx.call(format, [self, how])


@registry.method(str, "format")
def _format_text(tx: Tracer, self: VariableTracker, /, *args: VariableTracker, **kwargs: VariableTracker) -> Any:
    text = expect_constant(tx, self, "a format")
    made = filled(tx, text, args, kwargs)
    if made is not None:
        return made
    values = [expect_constant(tx, arg, "formatted text") for arg in args]
    named = {name: expect_constant(tx, value, "formatted text") for name, value in kwargs.items()}
    return _formatted(tx, text, [*values, *named.values()], values, named)


@registry.method(str, "format_map")
def _format_mapping(tx: Tracer, self: VariableTracker, mapping: VariableTracker, /) -> VariableTracker:
    named = expect_constant(tx, mapping, "formatted text")
    return _formatted(tx, expect_constant(tx, self, "a format"), named.values(), [], named)


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
