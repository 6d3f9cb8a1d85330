"""Owns `hash`, `id` and `vars`, and the number of the thread: what things are to the interpreter alone.

The hash of a user's object is that of its traced `__hash__`; without one it is the address, and so is `id`. An object
that exists has one, which is guarded; one made while tracing has none, but its number can be passed on and be a key.
"""

from __future__ import annotations

import _thread
from typing import NoReturn

from minidynamo.errors import Diagnostic, SkipFrame
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant, Result
from minidynamo.tracer.frames.exceptions import caught
from minidynamo.tracer.handlers.values import hash_of, is_constant
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.reachable import is_outside, needed_by, parts
from minidynamo.tracer.records import registry
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import FunctionVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.objects import ClassVariable, IdVariable, ObjectVariable, OpaqueVariable, PythonModuleVariable
from minidynamo.variables.tensors import TensorVariable

_LASTING = (ObjectVariable, OpaqueVariable, ClassVariable, FunctionVariable, PythonModuleVariable)


@registry.function(hash)
def _hash(tx: Tracer, obj: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(hash_of(tx, obj))


@registry.function(id)
def _id(tx: Tracer, obj: VariableTracker, /) -> VariableTracker:
    _refuse_reused_places(tx, obj)
    if isinstance(obj, ConstantVariable | NumberVariable) or (obj.source is None and is_constant(obj)):
        tx.break_graph("MD233", "`id` of a constant", why="Equal constants may be one object, or several.")
    if obj.source is None:
        tx.graph.identity_keys[obj] = None
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


def _refuse_reused_places(tx: Tracer, asked: VariableTracker) -> None:
    """Give the frame up when an object may have been made where one has died whose `id` is still there to compare with.

    A number or text is asked by Python itself, behind a break; until then it must not have been kept for that.
    """
    is_made = isinstance(asked, ConstantVariable | NumberVariable) and not (is_outside(asked) or _is_shared(tx, asked))
    if not is_made and not tx.graph.identity_keys:
        return
    kept, ids = _kept(tx)
    known = [*(number.of for number in ids if number.of.source is None), *([asked] if is_made else [])]
    if not kept.issuperset(known):
        what, why = "`id` of a new object that nobody keeps", "Objects are made where others have died."
        raise SkipFrame(Diagnostic("MD233", what, why=why, fix="compare with `is`", where=tx.frames[0].location))


def _kept(tx: Tracer) -> tuple[set[VariableTracker], list[IdVariable]]:
    """What the frames and the effects so far refer to, and which ids are there: an `id` refers to nothing."""
    todo = [value for frame in tx.frames for value in frame.held()]
    todo += [value for effect in tx.side_effects.journal for value in needed_by(effect)]
    kept: set[VariableTracker] = set()
    ids = []
    while todo:
        value = todo.pop()
        if isinstance(value, IdVariable):
            ids.append(value)
        elif value not in kept:
            kept.add(value)
            if not isinstance(value, NumberVariable):  # which does not keep what it was computed of
                todo.extend(parts(value, tx.side_effects))
    return kept, ids


def _is_shared(tx: Tracer, constant: ConstantVariable | NumberVariable) -> bool:
    """Whether the interpreter or the code of the program keeps the value."""
    value = constant.here
    if value is None or isinstance(value, bool) or (type(value) is int and -5 <= value <= 256):
        return True
    return any(value is kept for frame in tx.frames for kept in frame.code.co_consts)


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

    found = caught(AttributeError, lambda: tx.getattr(obj, "__dict__"), refuse)
    assert found is not None
    return found
