"""Owns the list of texts that depend on settings of the process, such as the locale, and cannot be made during capture.

All other formatting of constants runs during capture, in `builtins.py` and `texts.py`.
"""

from __future__ import annotations

import datetime
from typing import NoReturn

from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records import registry
from minidynamo.variables.base import VariableTracker

_DATES = (datetime.date, datetime.time)


def depends_on_locale(value: object, how: str) -> bool:
    """Returns whether `format(value, how)` depends on the locale: names of months, digit separators."""
    return isinstance(value, _DATES) if "%" in how else how.endswith("n")


def refuse_local_text(tx: Tracer) -> NoReturn:
    """Breaks the graph at a text that depends on the locale or the time zone."""
    tx.break_graph(
        "MD233",
        "a text in local terms",
        why="The time zone and the language are those of the moment at which the program runs.",
        fix="move it out of the compiled function, or accept the break",
    )


def reads_settings(tx: Tracer, /, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    """Breaks the graph: the handler of functions that always read settings."""
    return refuse_local_text(tx)


registry.method(datetime.datetime, "astimezone", "fromtimestamp", "timestamp")(reads_settings)
registry.method(datetime.date, "fromtimestamp", "strftime")(reads_settings)
registry.method(datetime.time, "strftime")(reads_settings)


@registry.method(datetime.time, "__format__")
@registry.method(datetime.date, "__format__")
def _format_date(tx: Tracer, self: VariableTracker, how: VariableTracker, /) -> VariableTracker:
    return tx.call(format, [self, how])
