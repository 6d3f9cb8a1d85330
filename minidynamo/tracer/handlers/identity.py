"""Owns `hash`, `id`, `vars` and the thread number: properties that only the interpreter knows.

The hash of a user's object is the result of its traced `__hash__`; without `__hash__` it is the address, like `id`. The
address of an external object is guarded. The address of an object that was created during capture is unknown: the graph
breaks.
"""

from __future__ import annotations

import _thread
from typing import NoReturn

from minidynamo.errors import an
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant, Result
from minidynamo.tracer.frames.exceptions import catch_raised
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.values import hash_of
from minidynamo.tracer.records import registry
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import FunctionVariable
from minidynamo.variables.objects import ClassVariable, ObjectVariable, OpaqueVariable, PythonModuleVariable
from minidynamo.variables.tensors import TensorVariable

_WITH_ADDRESS = (ObjectVariable, OpaqueVariable, ClassVariable, FunctionVariable, PythonModuleVariable)


@registry.function(hash)
def _hash(tx: Tracer, obj: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(hash_of(tx, obj))


@registry.function(id)
def _id(tx: Tracer, obj: VariableTracker, /) -> VariableTracker:
    real = None
    if obj.source is not None and isinstance(obj, (TensorVariable, *_WITH_ADDRESS)):
        real = tx.graph.real(obj) if isinstance(obj, TensorVariable) else obj.value
    if obj.source is None or real is None:
        what = f"`id` of a new object or a constant: {an(obj.python_type.__name__)}"
        why = "Its address may differ at the next call."
        tx.break_graph("MD233", what, why=why, fix="Compare with `is`.")
    tx.guard(obj.source, GuardKind.IDENTITY, real)
    return ConstantVariable(id(real))


@registry.function(_thread.get_ident)
def _thread_number(tx: Tracer) -> VariableTracker:
    number = _thread.get_ident()
    tx.guard(Result(Constant(_thread.get_ident, "get_ident")), GuardKind.EQUALS, number)
    return ConstantVariable(number)


@registry.function(vars)
def _vars(tx: Tracer, obj: VariableTracker | None = None, /) -> VariableTracker:
    if obj is None:
        return tx.call(locals)

    def refuse(error: VariableTracker) -> NoReturn:
        tx.raises(TypeError("vars() argument must have __dict__ attribute"), exact=True)

    found = catch_raised(AttributeError, lambda: tx.getattr(obj, "__dict__"), refuse)
    assert found is not None
    return found
