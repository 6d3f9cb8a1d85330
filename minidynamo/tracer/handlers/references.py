"""Owns weak references: making them and reading them.

What a reference from outside refers to is read again by guards and residual programs, so a referent that dies or is
replaced is noticed. References with callbacks, and collections of weak references, are left to Python.
"""

from __future__ import annotations

import weakref

from minidynamo.guards.source import Result
from minidynamo.tracer import registry
from minidynamo.tracer.protocol import Tracer
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.references import WeakReferenceVariable


@registry.function(weakref.ref)
def _make(tx: Tracer, referent: VariableTracker, callback: VariableTracker | None = None, /) -> VariableTracker:
    if referent.source is None:
        tx.break_graph("MD206", "a weak reference to an object made while tracing", why="It has no address yet.")
    if callback is not None and not (isinstance(callback, ConstantVariable) and callback.value is None):
        tx.break_graph("MD206", "a weak reference with a callback", why="It is called when the object dies.")
    return WeakReferenceVariable(None, referent)


@registry.method(weakref.ref, "__call__")
def _read(tx: Tracer, reference: VariableTracker, /) -> VariableTracker:
    if not isinstance(reference, WeakReferenceVariable):
        name = reference.python_type.__name__
        tx.break_graph("MD206", f"a {name} is called", why="It is a weak reference of another kind.")
    if reference.referent is not None:
        return reference.referent
    assert reference.value is not None and reference.source is not None
    return tx.wrap(reference.value(), Result(reference.source))
