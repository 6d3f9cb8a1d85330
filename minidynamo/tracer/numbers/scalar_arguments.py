"""Owns the marks on symbolic numbers that a torch function takes as scalar arguments of its graph node.

The table of functions is not here (`minidynamo/graph/scalar_arguments.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from minidynamo.graph.scalar_arguments import operator_of, scalar_arguments_of
from minidynamo.tracer.numbers.arithmetic import involves_number, require, value_here
from minidynamo.tracer.protocol import Tracer
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import ListVariable, TupleVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.tensors import TensorVariable

Args = Sequence[VariableTracker]
Kwargs = Mapping[str, VariableTracker]


def mark_scalar_arguments(tx: Tracer, target: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Returns the arguments, with a mark on each scalar argument that may vary. Others are specialized later."""
    known = scalar_arguments_of(target)
    if known is None or not any(map(involves_number, (*args, *kwargs.values()))):
        return args, kwargs
    out = kwargs.get("out")
    if out is not None and not (isinstance(out, ConstantVariable) and out.value is None):
        return args, kwargs
    op = operator_of(target)
    if op is not None and not tx.graph.infers_symbolic_floats(op, args, kwargs):
        return args, kwargs
    tensors = [v.fake for v in known.named(args, kwargs).values() if isinstance(v, TensorVariable)]

    def marked(name: str, argument: VariableTracker) -> VariableTracker:
        if isinstance(argument, ListVariable | TupleVariable) and name in known.numbers:
            return replace(argument, items=[marked(name, item) for item in argument.items])
        if not isinstance(argument, NumberVariable) or not known.varies(name, argument.cls is int, tensors):
            return argument
        if _guard_condition(tx, known.condition, argument):
            return replace(argument, plain=True)
        return _specialize_exception(tx, argument)

    named = [marked(name, argument) for name, argument in zip(known.names, args)]
    return [*named, *args[len(named) :]], {name: marked(name, argument) for name, argument in kwargs.items()}


def _guard_condition(tx: Tracer, condition: str, number: NumberVariable) -> bool:
    """Returns whether the operation is the same for this number; the condition is guarded."""
    return not condition or (
        bool(eval(condition.format("n"), {}, {"n": value_here(number)})) and require(tx, condition, True, number)
    )


def _specialize_exception(tx: Tracer, number: NumberVariable) -> VariableTracker:
    """Specializes a float for which torch runs a different operation: 0 or 1."""
    here = number.unguarded_value
    may_be = number.cls is float and here in (0, 1)
    return ConstantVariable(here) if may_be and require(tx, f"{{0}} == {here!r}", True, number) else number
