"""Owns comptime: user code that runs during capture, at its position in the captured function.

It changes nothing in the graph, except for `graph_break` and proxies; `frontend/comptime_context.py` has the view that
a callback may read. Each callback runs once per capture: when a graph break restarts the tracer, callbacks that have
run do not run again.
"""

from __future__ import annotations

import contextlib
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from minidynamo.errors import ComptimeError, Diagnostic, MinidynamoError, summary
from minidynamo.frontend.comptime_context import ComptimeContext, ComptimeVar, describe
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.callables import CellVariable, FunctionVariable, NestedFunctionVariable

T = TypeVar("T")


def comptime(fn: Callable[[ComptimeContext], object], fallback_fn: Callable[[], object] = lambda: None) -> None:
    """Calls `fn(ctx)` while the surrounding code is being captured; eager code calls `fallback_fn()` instead.

    Also a decorator of a function with one argument, which then runs once, at its definition.
    """
    fallback_fn()


def print_graph() -> None:
    """Prints the graph captured so far; does nothing in eager."""


def print_locals(stacklevel: int = 0) -> None:
    """Prints the locals of the captured frame; does nothing in eager."""


def print_value_stack(stacklevel: int = 0) -> None:
    """Prints the values that an unfinished expression has computed; does nothing in eager."""


def print_value_stack_and_return(e: T, stacklevel: int = 0) -> T:
    """Calls `print_value_stack` in the middle of an expression; returns `e`."""
    return e


def print_disas(stacklevel: int = 0) -> None:
    """Prints the bytecode of the captured frame; does nothing in eager."""


def print_bt(stacklevel: int = 0) -> None:
    """Prints the captured frames; does nothing in eager."""


def print_guards() -> None:
    """Prints the guards so far; does nothing in eager."""


def graph_break() -> None:
    """Cuts the graph here; does nothing in eager."""


def assert_static(val: Any) -> None:
    """Raises AssertionError for a number that may change between calls; does nothing in eager."""


def force_static(val: Any) -> None:
    """Makes a number a constant of the graph; does nothing in eager."""


def enter_debugger() -> None:
    """Implements `comptime.breakpoint()`: enters the debugger with the context as `ctx`; does nothing in eager."""


def sleep(sec: float) -> None:
    """Delays the compile; does nothing in eager."""


def print_value(e: Any) -> None:
    """Implements `comptime.print(e)`: prints the tracker of a value, or the value itself in eager."""
    print(e)


# The action of each function during capture, called with the context and the arguments of the function.
_ACTIONS: dict[Callable[..., Any], Callable[..., object]] = {
    print_graph: ComptimeContext.print_graph,
    print_guards: ComptimeContext.print_guards,
    print_locals: ComptimeContext.print_locals,
    print_value_stack: ComptimeContext.print_value_stack,
    print_value_stack_and_return: lambda ctx, e, **level: ctx.print_value_stack(**level),
    print_disas: ComptimeContext.print_disas,
    print_bt: ComptimeContext.print_bt,
    print_value: lambda ctx, e: ctx.print(e),
    assert_static: lambda ctx, val: ctx.assert_static(val),
    force_static: lambda ctx, val: val.force_static(),
    sleep: lambda ctx, sec: ctx.sleep(sec),
    enter_debugger: lambda ctx: breakpoint(),
}
_NAMES = {print_value: "print", enter_debugger: "breakpoint"}
for _function in (*_ACTIONS, graph_break):
    setattr(comptime, _NAMES.get(_function, _function.__name__), _function)


@registry.function(comptime)
def _comptime(tx: Tracer, fn: VariableTracker, fallback_fn: VariableTracker | None = None) -> VariableTracker:
    with _callback_errors():
        callback = _real_function(tx, fn)
        if tx.attempt == 0:
            callback(ComptimeContext(tx))
    return ConstantVariable(None)


def _handler(function: Callable[..., Any], act: Callable[..., object]) -> Callable[..., VariableTracker]:
    """Returns the handler of a function: it acts in the first of two traces of a frame."""
    signature = inspect.signature(function)

    def handler(tx: Tracer, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        given = signature.bind(*args, **kwargs).arguments
        numbers = {name: as_constant(given[name]) for name in ("stacklevel", "sec") if name in given}
        if tx.attempt == 0:
            with _callback_errors():
                act(ComptimeContext(tx), **{name: ComptimeVar(tx, value) for name, value in given.items()} | numbers)
        return given["e"] if function is print_value_stack_and_return else ConstantVariable(None)

    tracer = inspect.Parameter("tx", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    handler.__signature__ = signature.replace(parameters=[tracer, *signature.parameters.values()])  # type: ignore[attr-defined]
    return handler


for _function, _act in _ACTIONS.items():
    registry.function(_function)(_handler(_function, _act))


@registry.function(graph_break)
def _graph_break(tx: Tracer) -> VariableTracker:
    ComptimeContext(tx).graph_break()
    return ConstantVariable(None)


@contextlib.contextmanager
def _callback_errors() -> Iterator[None]:
    """Raises errors of a callback as ComptimeError: they end the compile instead of a silent fallback to eager."""
    try:
        yield
    except MinidynamoError:
        raise
    except Exception as error:
        what = f"a comptime callback raised {summary(error)}"
        fix = "Repair the callback; its own error is the cause of this one."
        raise ComptimeError(Diagnostic("MD107", what, fix=fix)) from error


def _real_function(tx: Tracer, fn: VariableTracker) -> Callable[[ComptimeContext], object]:
    """Returns the callback as a function that can be called now; its closure has trackers for unknown values."""
    if isinstance(fn, FunctionVariable):
        return fn.value
    if not isinstance(fn, NestedFunctionVariable):
        raise TypeError(f"comptime needs a Python function with one argument, not {describe(tx, fn)}")
    closure = tuple(_real_cell(tx, cell) for cell in fn.closure)
    defaults = None if fn.defaults is None else as_constant(fn.defaults)
    return types.FunctionType(fn.code, fn.namespace, fn.qualname, defaults, closure)


def _real_cell(tx: Tracer, cell: CellVariable) -> types.CellType:
    if cell.contents is None:
        return cell.cell or types.CellType()
    try:
        return types.CellType(as_constant(cell.contents))
    except NotConstant:
        return types.CellType(ComptimeVar(tx, cell.contents))
