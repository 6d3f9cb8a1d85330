"""Owns values from outside that a program has only moved so far: nothing is guarded but that they are there.

Frames move them between stack and locals, into and out of callees, to what is returned and to attributes; whoever works
with one looks at it first. That makes its tracker, with guards.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping

from minidynamo.guards.guard import GuardKind
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.trace_rules import Action, rule_for
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import FunctionVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.objects import UnreadVariable

# Classes whose instances are all true.
_TRUE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type)


def looked_at(tx: Tracer, variable: VariableTracker) -> VariableTracker:
    """The tracker to work with."""
    return tx.wrap(variable.value, variable.source) if isinstance(variable, UnreadVariable) else variable


def as_known(tx: Tracer, variable: VariableTracker) -> VariableTracker:
    """The tracker of a value that was unread when it was put somewhere, if it has been read elsewhere since."""
    known = tx.graph.known(variable.source) if isinstance(variable, UnreadVariable) and variable.source else None
    return variable if known is None else known


def all_looked_at(
    tx: Tracer, args: Iterable[VariableTracker], kwargs: Mapping[str, VariableTracker]
) -> tuple[list[VariableTracker], dict[str, VariableTracker]]:
    """The trackers to work with, of the arguments of a call."""
    return [looked_at(tx, arg) for arg in args], {name: looked_at(tx, value) for name, value in kwargs.items()}


def is_none(tx: Tracer, variable: VariableTracker) -> bool:
    """Whether the value is None, which is all that is guarded of one that nobody looks at otherwise."""
    if isinstance(variable, UnreadVariable) and variable.value is not None:
        tx.guard(variable.source, GuardKind.NOT_NONE)
        return False
    known = looked_at(tx, variable)
    return isinstance(known, ConstantVariable) and known.python_type is type(None)


def truth(tx: Tracer, variable: VariableTracker) -> bool:
    """`bool(variable)`; of a function, class or module only the class is guarded."""
    if isinstance(variable, UnreadVariable) and type(variable.value) in _TRUE:
        tx.guard(variable.source, GuardKind.TYPE, type(variable.value))
        return True
    return tx.truth(looked_at(tx, variable))


def passes_on(function: FunctionVariable) -> bool:
    """Whether a call traces the function's own body, which gets the arguments as they are."""
    rule = rule_for(function.value)
    return rule.action is Action.INLINE and not rule.takes_itself
