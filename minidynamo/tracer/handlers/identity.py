"""Owns `hash`, `id`, `vars` and the thread number: properties that only the interpreter knows.

The hash of a user's object is the result of its traced `__hash__`; without `__hash__` it is the address, like `id`. The
address of an external object is guarded. An object that was made during capture has no address, but its id can be
passed on and be a key.
"""

from __future__ import annotations

import _thread
from typing import NoReturn

from minidynamo.errors import Diagnostic, SkipFrame
from minidynamo.guards.guard import GuardKind
from minidynamo.guards.source import Constant, Result
from minidynamo.tracer.frames.exceptions import catch_raised
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.values import hash_of, is_constant
from minidynamo.tracer.reachable import is_external, needed_by, parts
from minidynamo.tracer.records import registry
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.callables import FunctionVariable
from minidynamo.variables.objects import ClassVariable, IdVariable, ObjectVariable, OpaqueVariable, PythonModuleVariable
from minidynamo.variables.tensors import TensorVariable

_WITH_ADDRESS = (ObjectVariable, OpaqueVariable, ClassVariable, FunctionVariable, PythonModuleVariable)


@registry.function(hash)
def _hash(tx: Tracer, obj: VariableTracker, /) -> VariableTracker:
    return ConstantVariable(hash_of(tx, obj))


@registry.function(id)
def _id(tx: Tracer, obj: VariableTracker, /) -> VariableTracker:
    _refuse_reused_addresses(tx, obj)
    if isinstance(obj, ConstantVariable | NumberVariable) or (obj.source is None and is_constant(obj)):
        tx.break_graph("MD233", "`id` of a constant", why="Equal constants may be one object, or several.")
    if obj.source is None:
        tx.graph.identity_keys[obj] = None
        return IdVariable(obj)
    real = (
        tx.graph.real(obj) if isinstance(obj, TensorVariable) else obj.value if isinstance(obj, _WITH_ADDRESS) else None
    )
    if real is None:
        tx.break_graph(
            "MD233",
            f"`id` of a {obj.python_type.__name__}",
            why="Its address says nothing about the next call.",
            fix="compare with `is`",
        )
    tx.guard(obj.source, GuardKind.IDENTITY, real)
    return ConstantVariable(id(real))


def _refuse_reused_addresses(tx: Tracer, asked: VariableTracker) -> None:
    """Skips the frame if an object may reuse the address of a dead object whose `id` is still alive for comparison.

    Python computes the id of a number or text after a graph break. The frame is skipped if only the break would keep
    the value alive.
    """
    is_made = isinstance(asked, ConstantVariable | NumberVariable) and not (
        is_external(asked) or _is_kept_alive(tx, asked)
    )
    if not is_made and not tx.graph.identity_keys:
        return
    kept, ids = _referenced_values(tx)
    known = [*(number.of for number in ids if number.of.source is None), *([asked] if is_made else [])]
    if not kept.issuperset(known):
        what, why = "`id` of a new object without references", "Python reuses the addresses of dead objects."
        raise SkipFrame(Diagnostic("MD233", what, why=why, fix="compare with `is`", where=tx.frames[0].location))


def _referenced_values(tx: Tracer) -> tuple[set[VariableTracker], list[IdVariable]]:
    """Returns the values that frames and effects refer to, and the live ids. An id does not keep its object alive."""
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
            if not isinstance(value, NumberVariable):  # a number does not keep its operands alive
                todo.extend(parts(value, tx.side_effects))
    return kept, ids


def _is_kept_alive(tx: Tracer, constant: ConstantVariable | NumberVariable) -> bool:
    """Returns whether the interpreter or the code of the program keeps the value alive."""
    value = constant.unguarded_value
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

    found = catch_raised(AttributeError, lambda: tx.getattr(obj, "__dict__"), refuse)
    assert found is not None
    return found
