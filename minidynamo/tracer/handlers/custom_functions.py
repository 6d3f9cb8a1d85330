"""Owns calls of `torch.autograd.Function.apply`: one graph node that runs the user's forward, and later backward.

A trial trace of forward and backward adds guards on everything that the two read, and checks that the two change no
external value; its graph is dropped. A backward that cannot be traced runs eagerly
(`tracer/capture/eager_backward.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from minidynamo import compat
from minidynamo.graph.autograd_calls import of_custom_function, with_eager_backward
from minidynamo.graph.function_results import unaliased_result
from minidynamo.graph.scalar_arguments import run_whole
from minidynamo.tracer.capture import eager_backward
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.dry_run import without_side_effects
from minidynamo.tracer.handlers.values import constant
from minidynamo.tracer.numbers.arithmetic import specialized
from minidynamo.tracer.records import registry
from minidynamo.variables.base import NumberVariable, VariableTracker
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.objects import ClassVariable
from minidynamo.variables.tensors import TensorVariable

Function = torch.autograd.Function


class Context:
    """The `ctx` of forward and backward during capture; traced like a class of the user."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Stores the saved tensors."""
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Does nothing: forward-mode gradients are not captured."""

    def mark_dirty(self, *tensors: Any) -> None:
        """Accepts the inputs that forward wrote to."""

    def mark_non_differentiable(self, *outputs: Any) -> None:
        """Accepts the outputs that have no gradients."""

    def set_materialize_grads(self, value: bool) -> None:
        """Accepts whether backward receives zeros or None for unused outputs."""


@registry.function(Function.apply.__func__)  # type: ignore[attr-defined]
def _apply(tx: Tracer, cls: VariableTracker, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    if not isinstance(cls, ClassVariable) or kwargs:
        tx.break_graph("MD207", "Function.apply() is called with keywords", fix="pass the arguments by position")

    def refuse(what: str) -> NoReturn:
        _refuse(tx, cls.value, what)

    tensors = [arg for arg in args if isinstance(arg, TensorVariable)]
    given = tuple(eager_backward.as_argument(tx, arg) for arg in args)
    trains = torch.is_grad_enabled() and any(tx.graph.use(tensor).requires_grad for tensor in tensors)
    with (
        tx.graph.open_subgraph(tensors, takes_numbers=True) as trial,
        without_side_effects(tx, refuse, may_write=True),
        eager_backward.without_grad(tx),
    ):
        ctx, result = _forward(tx, cls, given)
        if trial.changed_facts() is not None:
            refuse("it changes the shape of a tensor")
        if trains and not eager_backward.runs_eagerly(cls.value):
            eager_backward.trace_backward(tx, cls.value, trial, result, functools.partial(_backward, tx, cls, ctx))
    eager_backward.pin_read_numbers(trial)
    if trains and eager_backward.runs_eagerly(cls.value):
        eager_backward.check_eager_call(tx, f"{cls.value.__name__}.apply()", args)
        return tx.emit(with_eager_backward(applier(cls.value)), [_as_plain(arg) for arg in args])
    kinds = {arg.cls for arg in args if isinstance(arg, NumberVariable)}
    why = ""
    if float in kinds and (trial.draws or trial.writes):
        why = "it draws random numbers or writes, and is given a float that differs from call to call"
    elif int in kinds and trial.has_scalar_arguments:
        why = "torch takes an int that it is given, and that differs from call to call, as a plain number"
    if why and not tx.graph.may_break:
        return _apply(tx, cls, *map(specialized, args))
    if why:
        refuse(why)
    return tx.emit(applier(cls.value, whole=float in kinds), [_as_plain(arg) for arg in args])


def _as_plain(arg: VariableTracker) -> VariableTracker:
    """Marks a symbolic float as plain: user code receives a number, not a symbol."""
    return replace(arg, plain=True) if isinstance(arg, NumberVariable) and arg.cls is float else arg


def applier(cls: type[Any], whole: bool = False) -> Callable[..., Any]:
    """Returns `cls.apply` as a plain function that graphs can name; as a `whole` it takes symbolic numbers."""

    def apply(*args: Any) -> Any:
        results = cls.apply(*args)
        if get_proxy_mode() is None:
            return results
        if isinstance(results, tuple):
            return tuple(unaliased_result(result, args) for result in results)
        return unaliased_result(results, args)

    of_custom_function(apply, cls)
    apply.__dict__["only_computes"] = True  # its trace showed no effects except writes to its arguments
    apply.__name__ = apply.__qualname__ = f"{cls.__name__}_apply"
    apply.__module__ = cls.__module__
    if whole:
        run_whole(apply, f"{cls.__module__}.{cls.__qualname__} {id(cls)}")
    return apply


def _forward(
    tx: Tracer, cls: ClassVariable, args: tuple[VariableTracker, ...]
) -> tuple[VariableTracker, VariableTracker]:
    needs = tuple(isinstance(arg, TensorVariable) and tx.graph.use(arg).requires_grad for arg in args)
    ctx = tx.call(tx.wrap(Context, None), [constant(needs)])
    forward = tx.getattr(cls, "forward")
    if issubclass(cls.value, Function) and cls.value.setup_context is compat.default_setup_context:
        return ctx, tx.call(forward, [ctx, *args])
    result = tx.call(forward, args)
    tx.call(tx.getattr(cls, "setup_context"), [ctx, TupleVariable(list(args)), result])
    return ctx, result


def _backward(tx: Tracer, cls: ClassVariable, ctx: VariableTracker, *gradients: VariableTracker) -> VariableTracker:
    assert issubclass(cls.value, Function)
    name = "vjp" if cls.value.backward is Function.backward else "backward"
    return tx.call(tx.getattr(cls, name), [ctx, *gradients])


def _refuse(tx: Tracer, cls: type, what: str) -> NoReturn:
    tx.break_graph(
        "MD207",
        f"{cls.__name__}.apply() cannot be captured: {what}",
        why="Its forward and backward run inside the graph, and backward only when gradients are computed.",
    )
