"""Owns the tables of functions that rebuild each family of values, and the decorators that fill the tables.

Text is not printed here: `rebuilder.py` reads the tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from minidynamo.variables.base import VariableTracker

# build(rebuild, variable) -> an expression; its statements are appended to rebuild.lines.
Build = Callable[[Any, Any], str]
# fill(rebuild, variable, name) appends statements that put the contents into the value called `name`.
Fill = Callable[[Any, Any, str], None]
# keep(variable) -> {attribute name: the part that this attribute of the value returns}.
Keep = Callable[[Any], dict[str, VariableTracker]]
B = TypeVar("B", bound=Build)
F = TypeVar("F", bound=Fill)
K = TypeVar("K", bound=Keep)

BUILDERS: dict[type[VariableTracker], Build] = {}
# Values that are created empty and filled later, because a value may contain itself.
FILLERS: dict[type[VariableTracker], tuple[Build, Fill]] = {}
# Values that copy the items at construction and keep parts of their own.
KEEPERS: dict[type[VariableTracker], Keep] = {}
_HINTS: dict[type[VariableTracker], str] = {}


def builds(*trackers: type[VariableTracker], hint: str = "") -> Callable[[B], B]:
    """Registers the decorated function to build these values; `hint` names the variables (default: the class)."""

    def register(build: B) -> B:
        for tracker in trackers:
            BUILDERS[tracker] = build
            _HINTS[tracker] = hint
        return build

    return register


def fills(*trackers: type[VariableTracker], empty: Build) -> Callable[[F], F]:
    """Registers the decorated function to fill the value that `empty` creates."""

    def register(fill: F) -> F:
        for tracker in trackers:
            FILLERS[tracker] = (empty, fill)
        return fill

    return register


def keeps(*trackers: type[VariableTracker]) -> Callable[[K], K]:
    """Registers the decorated function to return the parts that are read from such a value after its construction."""

    def register(keep: K) -> K:
        for tracker in trackers:
            KEEPERS[tracker] = keep
        return keep

    return register


def hint_of(variable: VariableTracker) -> str:
    """Returns a hint for the variable name of the value."""
    return _HINTS.get(type(variable)) or variable.python_type.__name__.lower()
