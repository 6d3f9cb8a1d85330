"""Owns the trackers of weak references and context variables.

What reading one means is in `tracer/handlers/references.py`.
"""

from __future__ import annotations

import contextvars
import weakref
from dataclasses import dataclass
from typing import Any

from minidynamo.variables.base import VariableTracker


@dataclass(eq=False)
class WeakReferenceVariable(VariableTracker):
    """A weak reference: `value`, one that existed before the trace, or one made while tracing to `referent`."""

    value: weakref.ref[Any] | None
    referent: VariableTracker | None = None

    @property
    def python_type(self) -> type:
        return weakref.ref


@dataclass(eq=False)
class ContextVarVariable(VariableTracker):
    """A context variable that existed before the trace."""

    value: contextvars.ContextVar[Any]

    @property
    def python_type(self) -> type:
        return contextvars.ContextVar


@dataclass(eq=False)
class ContextTokenVariable(VariableTracker):
    """What setting a context variable gives while tracing: with it, `of` becomes what it was before `effect`."""

    of: ContextVarVariable
    effect: object

    @property
    def python_type(self) -> type:
        return contextvars.Token
