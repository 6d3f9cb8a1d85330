"""Owns questions about installed modules: missing modules, and versions.

Each call asks again, as the program does. An import of an existing module runs its code, and is left to Python.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from minidynamo.guards.source import Computed, Constant
from minidynamo.tracer.frames.exceptions import tracked, without_message
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.values import expect_constant
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.registry import cannot_trace
from minidynamo.variables.base import ConstantVariable, VariableTracker


def is_missing(name: str) -> bool:
    """Returns whether no module has this name, which has no dots. The tracer handles this function."""
    if name in sys.modules:
        return False
    try:
        return importlib.util.find_spec(name) is None
    except Exception:  # a finder of the program fails; it will raise the same error in the program's own call
        return False


def raise_if_missing(tx: Tracer, name: str) -> None:
    """Raises ModuleNotFoundError if the module's top-level package does not exist."""
    top = name.partition(".")[0]
    if _is_missing_now(tx, top):
        tx.raises(tracked(ModuleNotFoundError(f"No module named {top!r}", name=top), tx.side_effects, exact=True))


def _is_missing_now(tx: Tracer, name: str) -> bool:
    missing = is_missing(name)
    if missing:
        tx.graph.shapes.require(_answer_source(is_missing, name), True)
    return missing


def _answer_source(question: Callable[[str], Any], name: str) -> Computed:
    return Computed("{0}({1})", (Constant(question, question.__name__), Constant(name, repr(name))))


def refuse_missing(name: str) -> None:
    """Raises ModuleNotFoundError as an import does. The tracer handles this function."""


@registry.function(refuse_missing)
def _refuse_missing(tx: Tracer, name: VariableTracker) -> VariableTracker:
    raise_if_missing(tx, expect_constant(tx, name, "the name of a module"))
    return ConstantVariable(None)


@registry.function(is_missing)
def _is_missing(tx: Tracer, name: VariableTracker) -> VariableTracker:
    return ConstantVariable(_is_missing_now(tx, expect_constant(tx, name, "the name of a module")))


@registry.polyfill(importlib._bootstrap._find_spec)  # type: ignore[attr-defined]
def find_spec(name: str, path: Any, target: Any = None) -> Any:
    """Replaces the search of `importlib.util.find_spec` for a module that is not imported."""
    if path is None and "." not in name and is_missing(name):
        return None
    return cannot_trace("looking for a module", "it may be there at the next call")


@registry.polyfill(importlib._bootstrap._find_and_load)  # type: ignore[attr-defined]
def find_and_load(name: str, import_: Any) -> Any:
    """Replaces the import of `importlib.import_module`."""
    module = sys.modules.get(name)
    if module is not None:
        return module
    refuse_missing(name)
    return cannot_trace("importing a module", "importing runs the module's code")


def installed_version(name: str) -> str | None:
    """Returns the version of a distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


@registry.function(importlib.metadata.version)
def _version(tx: Tracer, distribution_name: VariableTracker) -> VariableTracker:
    name = expect_constant(tx, distribution_name, "the name of a distribution")
    found = installed_version(name) if type(name) is str else None
    version = tx.wrap(found, _answer_source(installed_version, name))
    if found is None:
        tx.raises(without_message(importlib.metadata.PackageNotFoundError))
    return version
