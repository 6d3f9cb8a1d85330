"""Owns launches of the user's Triton kernels during capture: a graph node launches the kernel at run time.

The operator is in `minidynamo/graph/triton_launch.py`. `tracer/records/kernel_writes.py` finds the arguments that a
kernel writes to.
"""

from __future__ import annotations

import inspect
import types
from typing import Any, NoReturn

from minidynamo.compat import memory_of
from minidynamo.errors import an
from minidynamo.graph.triton_launch import Launch, Tensor, launch_kernel, number_of
from minidynamo.guards.guard import GuardKind
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.handlers.values import constant, none
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant, key_of
from minidynamo.tracer.records.kernel_writes import written_arguments
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.containers import DictVariable, ListVariable, SequenceVariable
from minidynamo.variables.objects import ObjectVariable
from minidynamo.variables.tensors import TensorVariable

_WHY = "A launch in the graph needs a kernel whose function, grid and other arguments are known while tracing."


@registry.late_function("triton.runtime.jit", "JITFunction.run")
@registry.late_function("triton.runtime.interpreter", "InterpretedFunction.run")
def _run(
    tx: Tracer,
    kernel: VariableTracker,
    *args: VariableTracker,
    grid: VariableTracker,
    warmup: VariableTracker,
    **kwargs: VariableTracker,
) -> VariableTracker:
    real = kernel.value if isinstance(kernel, ObjectVariable) else None
    function = getattr(real, "fn", None)
    if not isinstance(function, types.FunctionType) or tx.truth(warmup):
        _refuse(tx, "it is not a kernel that runs a Python function")
    tx.guard(kernel.source, GuardKind.IDENTITY, real)
    named = _arguments_by_name(tx, function, args, kwargs)
    tensors = {arg: None for arg in (*args, *kwargs.values()) if isinstance(arg, TensorVariable)}
    names = written_arguments(function)
    written = [arg for arg in tensors if any(value is arg and name in names for name, value in named.items())]
    read = [arg for arg in tensors if arg not in written]
    _check_memory(tx, written, list(tensors))

    def launch_argument(arg: VariableTracker) -> Any:
        if isinstance(arg, TensorVariable):
            return Tensor(arg in written, (written if arg in written else read).index(arg))
        return _plain(tx, arg)

    launch = Launch(
        real,
        _grid(tx, grid, named),
        tuple(map(launch_argument, args)),
        {name: launch_argument(arg) for name, arg in kwargs.items()},
    )
    name = constant(function.__name__)
    tx.emit(launch_kernel, [name, ListVariable([*written]), ListVariable([*read]), constant(number_of(launch))])
    return none()


@registry.late_function("triton.runtime.autotuner", "Autotuner.run")
def _run_autotuned(tx: Tracer, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    _refuse(tx, "it is an autotuned kernel, which is timed in several forms when it runs")


def _arguments_by_name(
    tx: Tracer, function: types.FunctionType, args: tuple[VariableTracker, ...], kwargs: dict[str, VariableTracker]
) -> dict[str, VariableTracker]:
    """Returns the kernel's arguments by parameter name, with defaults, but without Triton's own (`num_warps`)."""
    signature = inspect.signature(function)
    named = {name: value for name, value in kwargs.items() if name in signature.parameters}
    try:
        bound = signature.bind(*args, **named)
    except TypeError as error:
        tx.raises(error)
    defaults = {name: parameter.default for name, parameter in signature.parameters.items()}
    return {
        name: bound.arguments[name] if name in bound.arguments else tx.wrap(default, None)
        for name, default in defaults.items()
    }


def _grid(tx: Tracer, grid: VariableTracker, named: dict[str, VariableTracker]) -> tuple[int, ...]:
    """Returns the grid; a callable grid is called with the kernel's arguments."""
    if not isinstance(grid, SequenceVariable):
        grid = tx.call(grid, [DictVariable({key_of(constant(name)): value for name, value in named.items()})])
    try:
        sizes = tuple(as_constant(item) for item in tx.unpack(grid))
    except NotConstant:
        _refuse(tx, "its grid is only known when the program runs")
    return sizes


def _plain(tx: Tracer, arg: VariableTracker) -> object:
    """Returns the value of an argument that is no tensor: a constant, or an object that is the same at each call."""
    if isinstance(arg, ObjectVariable) and arg.value is not None and arg.storage is None:
        tx.guard(arg.source, GuardKind.IDENTITY, arg.value)
        return arg.value
    try:
        return as_constant(arg)
    except NotConstant:
        _refuse(tx, f"it takes {an(arg.python_type.__name__)}")


def _check_memory(tx: Tracer, written: list[TensorVariable], tensors: list[TensorVariable]) -> None:
    """Refuses a written tensor that shares memory with another argument: autograd cannot express the sharing."""
    memories = [memory_of(tx.graph.use(tensor)) for tensor in tensors]
    if any(memories.count(memory_of(tensor.fake)) > 1 for tensor in written):
        _refuse(tx, "it writes to memory that two of its arguments share")


def _refuse(tx: Tracer, what: str) -> NoReturn:
    tx.break_graph("MD207", f"a Triton kernel cannot be captured: {what}", why=_WHY)
