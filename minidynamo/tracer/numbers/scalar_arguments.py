"""Owns which numbers that differ from call to call a function of torch takes as plain numbers, and stay in its call.

Which functions there are is said in `minidynamo/graph/scalar_arguments.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from minidynamo.graph.scalar_arguments import Plain, operator_of, plain
from minidynamo.tracer.numbers.arithmetic import involves_number, require, value_here
from minidynamo.tracer.protocol import Tracer
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import ListVariable, TupleVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.tensors import TensorVariable

Args = Sequence[VariableTracker]
Kwargs = Mapping[str, VariableTracker]


def with_plain_numbers(tx: Tracer, target: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments, with marks on the numbers that the call takes as they are. What else varies becomes constant."""
    known = plain(target)
    if known is None or not any(map(involves_number, (*args, *kwargs.values()))):
        return args, kwargs
    tensors = [v.fake for v in known.named(args, kwargs).values() if isinstance(v, TensorVariable)]
    if not _is_the_same_call(known, args, kwargs, tensors):
        return args, kwargs
    op = operator_of(target)
    if op is not None and not tx.graph.infers_symbolic_floats(op, args, kwargs):
        return args, kwargs

    def taken(name: str, argument: VariableTracker) -> VariableTracker:
        if isinstance(argument, ListVariable | TupleVariable) and name in known.numbers:
            return replace(argument, items=[taken(name, item) for item in argument.items])
        if not isinstance(argument, NumberVariable) or not known.varies(name, argument.cls is int, tensors):
            return argument
        if _may_vary(tx, known.numbers[name], argument):
            return replace(argument, plain=True)
        return _as_special(tx, argument, alone=len(known.numbers) == 1)

    named = [taken(name, argument) for name, argument in zip(known.names, args)]
    return [*named, *args[len(named) :]], {name: taken(name, argument) for name, argument in kwargs.items()}


def _is_the_same_call(known: Plain, args: Args, kwargs: Kwargs, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether nothing that is asked for besides the numbers makes another operation of it."""
    named = known.named(args, kwargs)
    out = kwargs.get("out")
    if out is not None and not (isinstance(out, ConstantVariable) and out.value is None):
        return False
    for name, condition in known.numbers.items():
        given = named.get(name)
        if condition and isinstance(given, ConstantVariable) and not _holds(condition, given.value) and given.value:
            return False
    on_cpu = all(fake.device.type == "cpu" for fake in tensors)
    for name, value in (known.fixed if on_cpu else {**known.fixed, **known.fixed_elsewhere}).items():
        given = named.get(name)
        if given is not None and not (isinstance(given, ConstantVariable) and given.value == value):
            return False
    return True


def _may_vary(tx: Tracer, condition: str, number: NumberVariable) -> bool:
    """Whether a number is one of those for which the call is the same; that they are is guarded."""
    if not condition:
        return True
    return _holds(condition, value_here(number)) and require(tx, condition, True, number)


def _as_special(tx: Tracer, number: NumberVariable, *, alone: bool) -> VariableTracker:
    """A float for which the call is another one: a constant, of which there are few. Where it is not `alone`, this is
    known of 0 only."""
    here = number.here
    may_be = number.cls is float and (here in (0, 1) if alone else here == 0)
    return ConstantVariable(here) if may_be and require(tx, f"{{0}} == {here!r}", True, number) else number


def _holds(condition: str, number: Any) -> bool:
    return not isinstance(number, int | float) or bool(eval(condition.format("n"), {}, {"n": number}))
