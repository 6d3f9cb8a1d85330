"""Owns comptime: user code that runs during capture, at its position in the captured function.

It changes nothing in the graph, except for `graph_break` and proxies; `frontend/comptime_context.py` has the view that
a callback may read. Each callback runs once per capture: when a graph break restarts the tracer, callbacks that have
run do not run again.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from minidynamo.errors import ComptimeError, Diagnostic, MinidynamoError, summary
from minidynamo.frontend.comptime_context import ComptimeContext, ComptimeVar, describe
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import CellVariable, FunctionVariable, NestedFunctionVariable
from minidynamo.variables.constants import ConstantVariable

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


# Attributes of `comptime`. Functions with a stack level print the context and return None.
_SHOW: dict[Callable[..., Any], Callable[..., None]] = {
    print_locals: ComptimeContext.print_locals,
    print_value_stack: ComptimeContext.print_value_stack,
    print_disas: ComptimeContext.print_disas,
    print_bt: ComptimeContext.print_bt,
}
_WITHOUT_STACKLEVEL = (
    print_graph,
    print_guards,
    print_value_stack_and_return,
    graph_break,
    assert_static,
    force_static,
    sleep,
)
for _convenience in (*_SHOW, *_WITHOUT_STACKLEVEL):
    setattr(comptime, _convenience.__name__, _convenience)
for _name, _convenience in (("print", print_value), ("breakpoint", enter_debugger)):
    setattr(comptime, _name, _convenience)


@registry.function(comptime)
def _comptime(tx: Tracer, fn: VariableTracker, fallback_fn: VariableTracker | None = None) -> VariableTracker:
    with _callback_errors():
        callback = _real_function(tx, fn)
        if tx.attempt == 0:
            callback(ComptimeContext(tx))
    return ConstantVariable(None)


def _once(tx: Tracer, act: Callable[[ComptimeContext], object]) -> VariableTracker:
    """Acts in the first of two traces of a frame."""
    if tx.attempt == 0:
        with _callback_errors():
            act(ComptimeContext(tx))
    return ConstantVariable(None)


def _show(show: Callable[..., None]) -> Callable[..., VariableTracker]:
    def handler(tx: Tracer, stacklevel: VariableTracker | None = None) -> VariableTracker:
        level = 0 if stacklevel is None else as_constant(stacklevel)
        return _once(tx, lambda ctx: show(ctx, stacklevel=level))

    return handler


for _convenience, _method in _SHOW.items():
    registry.function(_convenience)(_show(_method))


@registry.function(print_value_stack_and_return)
def _print_value_stack_and_return(
    tx: Tracer, e: VariableTracker, stacklevel: VariableTracker | None = None
) -> VariableTracker:
    _show(ComptimeContext.print_value_stack)(tx, stacklevel)
    return e


@registry.function(print_value)
def _print_value(tx: Tracer, e: VariableTracker) -> VariableTracker:
    return _once(tx, lambda ctx: ctx.print(ComptimeVar(tx, e)))


@registry.function(print_graph)
def _print_graph(tx: Tracer) -> VariableTracker:
    return _once(tx, ComptimeContext.print_graph)


@registry.function(print_guards)
def _print_guards(tx: Tracer) -> VariableTracker:
    return _once(tx, ComptimeContext.print_guards)


@registry.function(assert_static)
def _assert_static(tx: Tracer, val: VariableTracker) -> VariableTracker:
    return _once(tx, lambda ctx: ctx.assert_static(ComptimeVar(tx, val)))


@registry.function(force_static)
def _force_static(tx: Tracer, val: VariableTracker) -> VariableTracker:
    return _once(tx, lambda ctx: ComptimeVar(tx, val).force_static())


@registry.function(enter_debugger)
def _enter_debugger(tx: Tracer) -> VariableTracker:
    return _once(tx, _debug)


def _debug(ctx: ComptimeContext) -> None:
    breakpoint()


@registry.function(sleep)
def _sleep(tx: Tracer, sec: VariableTracker) -> VariableTracker:
    return _once(tx, lambda ctx: ctx.sleep(as_constant(sec)))


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
