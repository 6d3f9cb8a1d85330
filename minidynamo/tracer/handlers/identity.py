"""Owns `hash`, `id` and `vars`, and the number of the thread: what things are to the interpreter alone.

The hash of a user's object is that of its traced `__hash__`; without one it is the address, and so is `id`. An object
that exists has one, which is guarded; one made while tracing has none, but its number can be passed on and be a key.
"""

from __future__ import annotations

import _thread

from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant, Result
from minidynamo.tracer import registry
from minidynamo.tracer.handlers.values import hash_of, is_constant
from minidynamo.tracer.protocol import Tracer
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import FunctionVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.objects import ClassVariable, IdVariable, ObjectVariable, OpaqueVariable, PythonModuleVariable
from minidynamo.variables.tensors import TensorVariable

_LASTING = (ObjectVariable, OpaqueVariable, ClassVariable, FunctionVariable, PythonModuleVariable)


@registry.function(hash)
def _hash(tx: Tracer, obj: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(hash_of(tx, obj))


@registry.function(id)
def _id(tx: Tracer, obj: VariableTracker, /) -> VariableTracker:
    if isinstance(obj, ConstantVariable) or (obj.source is None and is_constant(obj)):
        tx.break_graph("MD233", "`id` of a constant", why="Equal constants may be one object, or several.")
    if obj.source is None:
        return IdVariable(obj)
    real = tx.graph.real(obj) if isinstance(obj, TensorVariable) else obj.value if isinstance(obj, _LASTING) else None
    if real is None:
        tx.break_graph(
            "MD233",
            f"`id` of a {obj.python_type.__name__}",
            why="Its address says nothing about the next call.",
            fix="compare with `is`",
        )
    tx.guard(obj.source, GuardKind.IDENTITY, real)
    return ConstantVariable(id(real))


@registry.function(_thread.get_ident)
def _thread_number(tx: Tracer) -> VariableTracker:
    number = _thread.get_ident()
    tx.guard(Result(Constant(_thread.get_ident, "get_ident")), GuardKind.EQUALS, number)
    return ConstantVariable(number)


@registry.function(vars)
def _vars(tx: Tracer, obj: VariableTracker | None = None, /) -> VariableTracker:
    return tx.call(locals) if obj is None else tx.getattr(obj, "__dict__")
