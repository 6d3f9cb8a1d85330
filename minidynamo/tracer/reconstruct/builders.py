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
# keep(variable) -> the parts of a value that it gives back, by the names of the attributes that do.
Keep = Callable[[Any], dict[str, VariableTracker]]
B = TypeVar("B", bound=Build)
F = TypeVar("F", bound=Fill)
K = TypeVar("K", bound=Keep)

BUILDERS: dict[type[VariableTracker], Build] = {}
# Values that can be made first and filled later, so that they may contain themselves.
FILLERS: dict[type[VariableTracker], tuple[Build, Fill]] = {}
# Values that are given their parts as items and make objects of their own of these.
KEEPERS: dict[type[VariableTracker], Keep] = {}
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


def keeps(*trackers: type[VariableTracker]) -> Callable[[K], K]:
    """The decorated function tells which parts of these values are there when the value is, to be read from it."""

    def register(keep: K) -> K:
        for tracker in trackers:
            KEEPERS[tracker] = keep
        return keep

    return register


def hint_of(variable: VariableTracker) -> str:
    """What a name for the value should look like."""
    return _HINTS.get(type(variable)) or variable.python_type.__name__.lower()
