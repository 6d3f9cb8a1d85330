"""Owns the trackers of weak references and context variables.

Reads are in `tracer/handlers/references.py`.
"""

from __future__ import annotations

import contextvars
import weakref
from dataclasses import dataclass
from typing import Any

from minidynamo.variables.base import VariableTracker


@dataclass(eq=False)
class WeakReferenceVariable(VariableTracker):
    """A weak reference."""

    #: The real reference, if it is an external value.
    value: weakref.ref[Any] | None
    #: The referent, if the reference was made during capture.
    referent: VariableTracker | None = None

    @property
    def python_type(self) -> type:
        return weakref.ref


@dataclass(eq=False)
class ContextVarVariable(VariableTracker):
    """A context variable that is an external value."""

    value: contextvars.ContextVar[Any]

    @property
    def python_type(self) -> type:
        return contextvars.ContextVar


@dataclass(eq=False)
class ContextTokenVariable(VariableTracker):
    """The token that setting a context variable returns during capture."""

    of: ContextVarVariable
    #: The side effect; a reset with the token restores the value from before it.
    effect: object

    @property
    def python_type(self) -> type:
        return contextvars.Token
