"""Owns the tables through which families of values say how they are rebuilt, and the decorators that fill them.

It writes no text: `rebuilder.py` looks things up here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from minidynamo.variables.base import VariableTracker

# build(rebuild, variable) -> an expression; statements that it needs go into rebuild.lines.
Build = Callable[[Any, Any], str]
# fill(rebuild, variable, name) writes statements that put the contents into the value called `name`.
Fill = Callable[[Any, Any, str], None]
B = TypeVar("B", bound=Build)
F = TypeVar("F", bound=Fill)

BUILDERS: dict[type[VariableTracker], Build] = {}
# Values that can be made first and filled later, so that they may contain themselves.
FILLERS: dict[type[VariableTracker], tuple[Build, Fill]] = {}
_HINTS: dict[type[VariableTracker], str] = {}


def builds(*trackers: type[VariableTracker], hint: str = "") -> Callable[[B], B]:
    """The decorated function builds these values; a name for one is called `hint`, or after its class."""

    def register(build: B) -> B:
        for tracker in trackers:
            BUILDERS[tracker] = build
            _HINTS[tracker] = hint
        return build

    return register


def fills(*trackers: type[VariableTracker], empty: Build) -> Callable[[F], F]:
    """The decorated function puts the contents into what `empty` makes of these values."""

    def register(fill: F) -> F:
        for tracker in trackers:
            FILLERS[tracker] = (empty, fill)
        return fill

    return register


def hint_of(variable: VariableTracker) -> str:
    """What a name for the value should look like."""
    return _HINTS.get(type(variable)) or variable.python_type.__name__.lower()
