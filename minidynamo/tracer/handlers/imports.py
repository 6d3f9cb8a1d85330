"""Owns what programs ask of what is installed: modules that there are not, and versions.

Each call asks again, as the program does. Importing a module that there is runs its code, and is left to Python.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from minidynamo.guards.source import Computed, Constant
from minidynamo.tracer.frames.exceptions import tracked, unsaid
from minidynamo.tracer.handlers.values import expect_constant
from minidynamo.tracer.polyfills.refusal import cannot_trace
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records import registry
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable


def is_missing(name: str) -> bool:
    """Whether there is no module of this name, which has no dots. The tracer handles this function."""
    if name in sys.modules:
        return False
    try:
        return importlib.util.find_spec(name) is None
    except Exception:  # a finder of the program's, which says so itself when it is asked
        return False


def raise_if_missing(tx: Tracer, name: str) -> None:
    """Raise ModuleNotFoundError where the module, or the package that it is in, is none that there is."""
    top = name.partition(".")[0]
    if _is_missing_now(tx, top):
        tx.raises(tracked(ModuleNotFoundError(f"No module named {top!r}", name=top), tx.side_effects, exact=True))


def _is_missing_now(tx: Tracer, name: str) -> bool:
    missing = is_missing(name)
    if missing:
        tx.graph.shapes.require(_answer(is_missing, name), True)
    return missing


def _answer(question: Callable[[str], Any], name: str) -> Computed:
    return Computed("{0}({1})", (Constant(question, question.__name__), Constant(name, repr(name))))


def refuse_missing(name: str) -> None:
    """Raise ModuleNotFoundError as importing does. The tracer handles this function."""


@registry.function(refuse_missing)
def _refuse_missing(tx: Tracer, name: VariableTracker) -> VariableTracker:
    raise_if_missing(tx, expect_constant(tx, name, "the name of a module"))
    return ConstantVariable(None)


@registry.function(is_missing)
def _is_missing(tx: Tracer, name: VariableTracker) -> VariableTracker:
    return ConstantVariable(_is_missing_now(tx, expect_constant(tx, name, "the name of a module")))


@registry.polyfill(importlib._bootstrap._find_spec)  # type: ignore[attr-defined]
def find_spec(name: str, path: Any, target: Any = None) -> Any:
    """What `importlib.util.find_spec` asks for a module that is not imported."""
    if path is None and "." not in name and is_missing(name):
        return None
    return cannot_trace("looking for a module", "it may be there at the next call")


@registry.polyfill(importlib._bootstrap._find_and_load)  # type: ignore[attr-defined]
def find_and_load(name: str, import_: Any) -> Any:
    """What `importlib.import_module` does."""
    module = sys.modules.get(name)
    if module is not None:
        return module
    refuse_missing(name)
    return cannot_trace("importing a module", "importing runs the module's code")


def installed_version(name: str) -> str | None:
    """The version of a distribution; None where there is none of this name."""
    try:
        return importlib.metadata.version(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


@registry.function(importlib.metadata.version)
def _version(tx: Tracer, distribution_name: VariableTracker) -> VariableTracker:
    name = expect_constant(tx, distribution_name, "the name of a distribution")
    found = installed_version(name) if type(name) is str else None
    version = tx.wrap(found, _answer(installed_version, name))
    if found is None:
        tx.raises(unsaid(importlib.metadata.PackageNotFoundError))
    return version
