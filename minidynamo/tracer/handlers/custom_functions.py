"""Owns calls of `torch.autograd.Function.apply`: one graph node that runs the user's forward, and later backward.

A trial trace of forward and backward adds guards on everything that the two read, and checks that the two change no
external value; its graph is dropped. A backward that cannot be traced runs eagerly
(`tracer/capture/eager_backward.py`).
"""

from __future__ import annotations

import contextlib
import functools
import types
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from minidynamo import compat
from minidynamo.graph.autograd_calls import mark_custom_function, with_eager_backward
from minidynamo.graph.function_results import unaliased_result
from minidynamo.graph.scalar_arguments import run_whole
from minidynamo.guards.guard import GuardKind
from minidynamo.tracer.capture import eager_backward
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.graph.open_graphs import Subgraph
from minidynamo.tracer.handlers.dry_run import without_changed_reads, without_side_effects
from minidynamo.tracer.handlers.values import constant
from minidynamo.tracer.numbers.arithmetic import specialized
from minidynamo.tracer.reachable import reachable
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.tensor_classes import has_own_dispatch
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.callables import BuiltinVariable, FunctionVariable, MethodVariable
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.objects import ClassVariable, ObjectVariable, OpaqueVariable
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


@registry.opaque_method(vars(Function)["apply"])  # of an instance, as old code has it
@registry.function(Function.apply.__func__)  # type: ignore[attr-defined]
def _apply(tx: Tracer, cls: VariableTracker, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    if not isinstance(cls, ClassVariable) or kwargs:
        tx.break_graph("MD207", "Function.apply() is called with keywords", fix="Pass the arguments by position.")

    def refuse(what: str) -> NoReturn:
        _refuse(tx, cls.value, what)

    tensors = [arg for arg in args if isinstance(arg, TensorVariable)]
    arguments = tuple(eager_backward.as_argument(tx, arg) for arg in args)
    trains = torch.is_grad_enabled() and any(tx.graph.use(tensor).requires_grad for tensor in tensors)
    with (
        tx.graph.open_subgraph(tensors, takes_numbers=True) as trial,
        without_side_effects(tx, refuse, may_write=True),
        without_changed_reads(tx, args, refuse),
        eager_backward.without_grad(tx),
    ):
        ctx, result = _forward(tx, cls, arguments)
        if trial.changed_facts() is not None:
            refuse("it changes the shape of a tensor")
        if trains and not eager_backward.runs_eagerly(cls.value):
            eager_backward.trace_backward(tx, cls.value, trial, result, functools.partial(_backward, tx, cls, ctx))
    eager_backward.specialize_read_numbers(trial)
    reads_outside = _reads_outside(tx, trial, args, refuse)
    if reads_outside or (trains and eager_backward.runs_eagerly(cls.value)):
        objects = _objects(tx, args)
        eager_backward.check_eager_call(
            tx, f"{cls.value.__name__}.apply()", [arg for k, arg in enumerate(args) if k not in objects]
        )
        function = with_eager_backward(applier(cls.value, objects))
        with tx.graph.real_tensors_in_calls() if reads_outside or objects else contextlib.nullcontext():
            return tx.emit(function, _node_arguments(args, objects))
    kinds = {arg.cls for arg in args if isinstance(arg, NumberVariable)}
    why = ""
    if float in kinds and (trial.draws or trial.writes):
        why = "it draws random numbers or writes, and takes a float that differs from call to call"
    elif int in kinds and trial.has_scalar_arguments:
        why = "it passes an int that differs from call to call as a scalar argument"
    if why and not tx.graph.may_break:
        return _apply(tx, cls, *map(specialized, args))
    if why:
        refuse(why)
    objects = _objects(tx, args)
    return tx.emit(applier(cls.value, objects, takes_symbols=float in kinds), _node_arguments(args, objects))


# Real values that a graph cannot hold; those without a source belong to libraries.
_FUNCTIONS = (FunctionVariable, ClassVariable, BuiltinVariable)
_OBJECTS = (*_FUNCTIONS, ObjectVariable, OpaqueVariable)


def _objects(tx: Tracer, args: Sequence[VariableTracker]) -> dict[int, Callable[[], Any]]:
    """Returns, by position, functions that return the modules, functions and other objects among the arguments.

    The objects are guarded by identity, and not kept alive.
    """
    objects: dict[int, Callable[[], Any]] = {}
    for position, arg in enumerate(args):
        if isinstance(arg, _FUNCTIONS) or (isinstance(arg, _OBJECTS) and arg.source is not None):
            tx.guard(arg.source, GuardKind.IDENTITY, arg.value)
            objects[position] = _weak(arg.value)
        elif isinstance(arg, MethodVariable):
            parts = _objects(tx, [arg.function, arg.receiver])
            if len(parts) == 2:
                objects[position] = weakref.WeakMethod(types.MethodType(parts[0](), parts[1]()))
    return objects


def _weak(value: object) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:  # a C function of a class, say
        return lambda: value


def _node_arguments(args: Sequence[VariableTracker], objects: Collection[int]) -> list[VariableTracker]:
    """Returns the arguments of a node: None at the positions of objects."""
    return [ConstantVariable(None) if k in objects else _as_scalar_argument(arg) for k, arg in enumerate(args)]


def _reads_outside(
    tx: Tracer, trial: Subgraph, args: Sequence[VariableTracker], refuse: Callable[[str], object]
) -> bool:
    """Returns whether a Function reads tensors that the graph does not pass: parameters of a module, or tensors with
    `__torch_dispatch__`."""
    if any(isinstance(arg, OpaqueVariable) and has_own_dispatch(arg.python_type) for arg in args):
        return True
    arguments, _ = reachable(args, tx.side_effects)
    others = {*trial.tensors} - {*arguments}
    if any(tensor.source is None for tensor in others):
        refuse("it reads a tensor of the frame that is not an argument")
    return bool(others)


def _as_scalar_argument(arg: VariableTracker) -> VariableTracker:
    """Marks a symbolic float as a scalar argument: user code receives a number, not a symbol."""
    return replace(arg, is_scalar_argument=True) if isinstance(arg, NumberVariable) and arg.cls is float else arg


def applier(
    cls: type[Any], objects: Mapping[int, Callable[[], Any]], takes_symbols: bool = False
) -> Callable[..., Any]:
    """Returns `cls.apply` as a plain function that graphs can name.

    `objects` has functions that return the arguments at some positions. `takes_symbols`: numbers may be symbolic.
    """

    def apply(*args: Any) -> Any:
        results = cls.apply(*(objects[k]() if k in objects else arg for k, arg in enumerate(args)))
        if get_proxy_mode() is None:
            return results
        if isinstance(results, tuple):
            return tuple(unaliased_result(result, args) for result in results)
        return unaliased_result(results, args)

    mark_custom_function(apply, cls)
    apply.__dict__["only_computes"] = True  # its trace showed no effects except writes to its arguments
    apply.__name__ = apply.__qualname__ = f"{cls.__name__}_apply"
    apply.__module__ = cls.__module__
    if takes_symbols:
        others = [id(get()) for get in objects.values()]
        run_whole(apply, f"{cls.__module__}.{cls.__qualname__} {id(cls)} {others}")
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
