"""Owns weak references and context variables.

Guards and residual programs read the referent of an external reference again, so they notice a referent that dies or is
replaced. They also notice a new value of a context variable. References with callbacks, collections of weak references,
and tokens of context variables that are kept, are left to Python.
"""

from __future__ import annotations

import contextvars
import weakref

import torch

from minidynamo.errors import Diagnostic, an
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import ContextValue, Result, Unset
from minidynamo.tracer.capture.finalizers import is_held, may_be_dead
from minidynamo.tracer.frames.inlining import trusted_source
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import is_constant_value
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import BuiltinVariable
from minidynamo.variables.objects import ContextTokenVariable, ContextVarVariable, ObjectVariable, WeakReferenceVariable
from minidynamo.variables.tensors import TensorVariable


@registry.function(weakref.ref)
def _make(tx: Tracer, referent: VariableTracker, callback: VariableTracker | None = None, /) -> VariableTracker:
    if callback is not None and not (isinstance(callback, ConstantVariable) and callback.value is None):
        tx.break_graph("MD206", "a weak reference with a callback", why="It is called when the object dies.")
    reference = WeakReferenceVariable(None, referent)
    if referent.source is not None:
        return reference
    what, why = "a weak reference to an object created while tracing", "It has no address yet."
    if not isinstance(referent, ObjectVariable) or referent.storage is not None or not referent.cls.__weakrefoffset__:
        tx.break_graph("MD206", what, why=why)
    for other in tx.side_effects.stand_ins:
        if isinstance(other, WeakReferenceVariable) and other.referent is referent:
            return other  # Python has one weak reference per object, too
    where = tx.frames[-1].location
    tx.side_effects.record_stand_in(reference, Diagnostic("MD206", f"graph break: {what} is kept", why, where=where))
    return reference


@registry.method(weakref.ref, "__call__")
def _read(tx: Tracer, reference: VariableTracker, /) -> VariableTracker:
    if not isinstance(reference, WeakReferenceVariable):
        name = reference.python_type.__name__
        tx.break_graph("MD206", f"{an(name)} is called", why="It is a weak reference of another kind.")
    known, referent = reference.referent, reference.value() if reference.value is not None else None
    is_tensor = isinstance(known, TensorVariable) or isinstance(referent, torch.Tensor)
    if (known is not None or referent is not None) and may_be_dead(tx, is_tensor):
        why = "Whether the object still lives is known when the program runs."
        tx.break_graph("MD206", "a weak reference is read after an object was released", why=why)
    if known is not None and known.source is None and not is_held(tx, known):
        why = "Nothing that is traced holds the object any more."
        tx.break_graph("MD206", "a weak reference is read whose object may be gone", why=why)
    if known is not None:
        return known
    assert reference.source is not None
    return tx.wrap(referent, Result(reference.source))


@registry.method(contextvars.ContextVar, "get")
def _read_context(tx: Tracer, variable: VariableTracker, default: VariableTracker | None = None, /) -> VariableTracker:
    assert isinstance(variable, ContextVarVariable) and variable.source is not None
    calls = tx.side_effects.context_calls(variable)
    if calls:
        return calls[-1].args[1].realize()
    value_source = ContextValue(variable.source)
    value = variable.value.get(Unset)
    if value is not Unset:
        return tx.wrap(value, value_source)
    tx.guard(value_source, GuardKind.IDENTITY, Unset)
    if default is not None:
        return default
    default_value = contextvars.Context().run(_default_in_empty_context, variable.value)
    if default_value is Unset:
        tx.raises(LookupError(variable.value))
    if not is_constant_value(default_value):
        tx.break_graph("MD206", "the default of a context variable is read", why="It has no name to be read by again.")
    return ConstantVariable(default_value)


@registry.method(contextvars.ContextVar, "set")
def _set_context(tx: Tracer, variable: VariableTracker, value: VariableTracker, /) -> VariableTracker:
    assert isinstance(variable, ContextVarVariable)
    setter = BuiltinVariable(contextvars.ContextVar.set, source=trusted_source(contextvars.ContextVar.set))
    token = ContextTokenVariable(variable, tx.side_effects.set_context(variable, setter, value))
    what, why = "the token of a context variable is kept", "Only the variable creates tokens."
    fix = "Reset the variable in the same function, without a graph break between."
    where = tx.frames[-1].location
    tx.side_effects.record_stand_in(token, Diagnostic("MD206", f"graph break: {what}", why, fix, where=where))
    return token


@registry.method(contextvars.ContextVar, "reset")
def _reset_context(tx: Tracer, variable: VariableTracker, token: VariableTracker, /) -> VariableTracker:
    calls = tx.side_effects.context_calls(variable)
    if not isinstance(token, ContextTokenVariable) or token.effect not in calls:
        why = "Only the token knows the value that the variable had before."
        tx.break_graph("MD206", "a context variable is reset by a token from elsewhere", why=why)
    tx.side_effects.reset_context(variable, token.effect)
    return ConstantVariable(None)


def _default_in_empty_context(variable: contextvars.ContextVar[object]) -> object:
    """Returns the default of a context variable; runs in an empty context."""
    try:
        return variable.get()
    except LookupError:
        return Unset
