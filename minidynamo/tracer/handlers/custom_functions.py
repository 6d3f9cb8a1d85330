"""Owns calls of `torch.autograd.Function.apply`: one graph node that runs the user's forward, and later backward.

Both are traced here, into a graph that is thrown away: for the guards on everything they read, and to be sure that they
change nothing outside. A backward that cannot be traced runs eagerly (`tracer/capture/eager_backward.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from minidynamo import compat
from minidynamo.graph.autograd_calls import with_eager_backward
from minidynamo.graph.function_results import of_its_own
from minidynamo.graph.scalar_arguments import run_whole
from minidynamo.tracer.capture import eager_backward
from minidynamo.tracer.handlers.dry_run import changing_nothing
from minidynamo.tracer.handlers.values import constant
from minidynamo.tracer.numbers.arithmetic import pinned
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records import registry
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.objects import ClassVariable
from minidynamo.variables.tensors import TensorVariable

Function = torch.autograd.Function


class Context:
    """Stands for the `ctx` of forward and backward while they are traced. Plain Python, traced like a user's class."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors for backward."""
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Keep tensors for forward-mode gradients, which are not captured."""

    def mark_dirty(self, *tensors: Any) -> None:
        """Say which inputs forward wrote to."""

    def mark_non_differentiable(self, *outputs: Any) -> None:
        """Say which outputs have no gradients."""

    def set_materialize_grads(self, value: bool) -> None:
        """Say whether backward gets zeros or None for the outputs that nobody used."""


@registry.function(Function.apply.__func__)  # type: ignore[attr-defined]
def _apply(tx: Tracer, cls: VariableTracker, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    if not isinstance(cls, ClassVariable) or kwargs:
        tx.break_graph("MD207", "Function.apply() is called with keywords", fix="pass the arguments by position")

    def refuse(what: str) -> NoReturn:
        _refuse(tx, cls.value, what)

    tensors = [arg for arg in args if isinstance(arg, TensorVariable)]
    given = tuple(eager_backward.given_to(tx, arg) for arg in args)
    trains = torch.is_grad_enabled() and any(tx.graph.use(tensor).requires_grad for tensor in tensors)
    with (
        tx.graph.open_subgraph(tensors, takes_numbers=True) as trial,
        changing_nothing(tx, refuse, may_write=True),
        eager_backward.without_grad(tx),
    ):
        ctx, result = _forward(tx, cls, given)
        if trial.changed_facts() is not None:
            refuse("it changes the shape of a tensor")
        if trains and not eager_backward.runs_eagerly(cls.value):
            eager_backward.follow(tx, cls.value, trial, result, functools.partial(_backward, tx, cls, ctx))
    eager_backward.pin_others(trial)
    if trains and eager_backward.runs_eagerly(cls.value):
        eager_backward.allow(tx, f"{cls.value.__name__}.apply()", args)
        return tx.emit(with_eager_backward(applier(cls.value)), [_as_plain(arg) for arg in args])
    kinds = {arg.cls for arg in args if isinstance(arg, NumberVariable)}
    why = ""
    if float in kinds and (trial.draws or trial.writes):
        why = "it draws random numbers or writes, and is given a float that differs from call to call"
    elif int in kinds and trial.has_plain_numbers:
        why = "torch takes an int that it is given, and that differs from call to call, as a plain number"
    if why and not tx.graph.may_end:
        return _apply(tx, cls, *map(pinned, args))
    if why:
        refuse(why)
    return tx.emit(applier(cls.value, whole=float in kinds), [_as_plain(arg) for arg in args])


def _as_plain(arg: VariableTracker) -> VariableTracker:
    """The argument; a float that varies is one for the user's code, and no symbol."""
    return replace(arg, plain=True) if isinstance(arg, NumberVariable) and arg.cls is float else arg


def applier(cls: type[Any], whole: bool = False) -> Callable[..., Any]:
    """`cls.apply` as a plain function, which graphs can name; as a `whole` it takes numbers that vary."""

    def apply(*args: Any) -> Any:
        results = cls.apply(*args)
        if get_proxy_mode() is None:
            return results
        if isinstance(results, tuple):
            return tuple(of_its_own(result, args) for result in results)
        return of_its_own(results, args)

    apply.__dict__["only_computes"] = True  # or writes to its arguments, as its trace has shown
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
