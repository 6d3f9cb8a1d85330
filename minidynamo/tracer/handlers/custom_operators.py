"""Owns calls of operators during capture, and derivatives that programs register for their operators.

An operator is a node of the graph. A derivative written in Python is traced for its guards or runs eagerly
(`tracer/capture/eager_backward.py`), like the derivative of a custom Function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from minidynamo import compat
from minidynamo.compat import OpOverload, OpOverloadPacket
from minidynamo.graph.autograd_calls import with_eager_backward
from minidynamo.graph.pytree import tensors_in
from minidynamo.guards.source import Attr, Constant
from minidynamo.tracer.capture import eager_backward
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.custom_functions import Context
from minidynamo.tracer.handlers.dry_run import without_side_effects
from minidynamo.tracer.handlers.values import constant
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import from_constant
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.callables import BuiltinVariable
from minidynamo.variables.containers import SequenceVariable, TupleVariable
from minidynamo.variables.tensors import TensorVariable


@registry.instances(OpOverload)
@registry.instances(OpOverloadPacket)
def _operator(
    tx: Tracer, function: BuiltinVariable, /, *args: VariableTracker, **kwargs: VariableTracker
) -> VariableTracker:
    overloads = _overloads(function.value)
    if any(op.namespace in compat.COLLECTIVE_NAMESPACES for op in overloads):
        if tx.graph.subgraph is not None:
            tx.break_graph("MD207", f"{function.value}() is called in a part of the graph that may run twice")
        return tx.emit(_eager_call(function.value), args, kwargs)
    eager = any(map(compat.is_python_composite, overloads))
    if not eager and torch.is_grad_enabled() and any(_requires_grad(tx, arg) for arg in (*args, *kwargs.values())):
        written = [op for op in overloads if compat.has_python_derivative(op)]
        for op in written:
            if not eager_backward.runs_eagerly(op):
                _trace_derivative(tx, op, args, kwargs)
        eager = any(map(eager_backward.runs_eagerly, written))
    if not eager:
        return tx.emit(function.value, args, kwargs)
    eager_backward.check_eager_call(tx, f"{function.value}()", ())
    return tx.emit(_eager_call(function.value), args, kwargs)


def _requires_grad(tx: Tracer, arg: VariableTracker) -> bool:
    if isinstance(arg, SequenceVariable):
        return any(_requires_grad(tx, item) for item in arg.items)
    return isinstance(arg, TensorVariable) and tx.graph.use(arg).requires_grad


def _overloads(operator: OpOverload | OpOverloadPacket) -> list[OpOverload]:
    if isinstance(operator, OpOverload):
        return [operator]
    return [getattr(operator, name) for name in operator.overloads()]


def _trace_derivative(
    tx: Tracer, op: OpOverload, args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker]
) -> None:
    """Traces the derivative of an operator in a trial, for its guards, or makes it run eagerly."""
    formulas = compat.formulas_of(op)
    inputs = None if formulas is None else _inputs(tx, op, args, kwargs)
    if formulas is None or inputs is None:
        eager_backward.mark_eager(op)
    owner, backward, setup_context = formulas
    source = Constant(owner, str(op))

    def refuse(what: str) -> None:
        eager_backward.mark_eager(op)

    with (
        tx.graph.open_subgraph([arg for arg in inputs if isinstance(arg, TensorVariable)], takes_numbers=True) as trial,
        without_side_effects(tx, refuse, may_write=True),
        eager_backward.without_grad(tx),
    ):
        result = tx.emit(op, inputs)
        needs = tuple(_requires_grad(tx, arg) for arg in inputs)
        ctx = tx.call(tx.wrap(Context, None), [constant(needs)])

        def differentiate(*gradients: VariableTracker) -> VariableTracker:
            if (setup := getattr(owner, setup_context)) is not None:
                named = {"ctx": ctx, "inputs": TupleVariable([*inputs]), "output": result}
                tx.call(tx.wrap(setup, Attr(source, setup_context)), [], named)
            return tx.call(tx.wrap(getattr(owner, backward), Attr(source, backward)), [ctx, *gradients])

        eager_backward.trace_backward(tx, op, trial, result, differentiate)
    eager_backward.specialize_read_numbers(trial)


def _inputs(
    tx: Tracer, op: OpOverload, args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker]
) -> list[VariableTracker] | None:
    """Returns the arguments in the order of the schema, defaults included.

    Returns None if the operator has keyword-only arguments, or lists of tensors, whose gradients are nested.
    """
    inputs = []
    for position, parameter in enumerate(compat.schema_of(op).arguments):
        if parameter.kwarg_only or (position >= len(args) and parameter.name not in kwargs):
            if parameter.kwarg_only or not parameter.has_default_value():
                return None
            inputs.append(from_constant(parameter.default_value))
            continue
        arg = args[position] if position < len(args) else kwargs[parameter.name]
        if not isinstance(arg, TensorVariable | ConstantVariable | NumberVariable):
            return None
        inputs.append(eager_backward.as_argument(tx, arg))
    return inputs


def _eager_call(operator: OpOverload | OpOverloadPacket) -> Callable[..., object]:
    """Returns a graph function that calls an operator whose derivative runs eagerly.

    On fake tensors, the derivative is not part of the call: `setup_context` may change Python objects.
    """

    def call(*args: object, **kwargs: object) -> object:
        tensors = [*tensors_in((args, kwargs))]
        if not any(isinstance(value, compat.FakeTensor) for value in tensors):
            return operator(*args, **kwargs)
        return _Undifferentiated.apply(operator, args, kwargs, *tensors)  # type: ignore[no-untyped-call]

    call.__name__ = call.__qualname__ = str(operator).replace(".", "_")
    return with_eager_backward(call, operator)


class _Undifferentiated(torch.autograd.Function):
    """A call of an operator on fake tensors. Its results require grad and are never differentiated."""

    @staticmethod
    def forward(ctx: Any, operator: Callable[..., Any], args: Any, kwargs: Any, *tensors: torch.Tensor) -> Any:
        """Returns the results of the call. `tensors` are the tensors among the arguments."""
        result = operator(*args, **kwargs)
        return tuple(result) if isinstance(result, list) else result
