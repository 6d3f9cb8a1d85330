"""Owns comptime: user code that runs while a function is being captured, at exactly the place where it stands.

It changes nothing in what is captured, except for `graph_break` and proxies; what a callback may look at is in
`frontend/comptime_context.py`. Each callback runs once per capture: when a graph break makes the tracer start over,
what was told already is not told again.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from minidynamo.errors import ComptimeError, Diagnostic, MinidynamoError, summary
from minidynamo.frontend.comptime_context import ComptimeContext, ComptimeVar, describe
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import CellVariable, FunctionVariable, NestedFunctionVariable
from minidynamo.variables.constants import ConstantVariable

T = TypeVar("T")


def comptime(fn: Callable[[ComptimeContext], object], fallback_fn: Callable[[], object] = lambda: None) -> None:
    """Call `fn(ctx)` while the surrounding code is being captured; when it runs as written, call `fallback_fn()`.

    Also a decorator of a function with one argument, which then runs once, where it is defined.
    """
    fallback_fn()


def print_graph() -> None:
    """Print the graph captured so far; nothing when the code runs as written."""


def print_locals(stacklevel: int = 0) -> None:
    """Print the locals of the captured frame; nothing when the code runs as written."""


def print_value_stack(stacklevel: int = 0) -> None:
    """Print the values that an unfinished expression has ready; nothing when the code runs as written."""


def print_value_stack_and_return(e: T, stacklevel: int = 0) -> T:
    """`print_value_stack` in the middle of an expression, which goes on with `e`."""
    return e


def print_disas(stacklevel: int = 0) -> None:
    """Print the bytecode of the captured frame; nothing when the code runs as written."""


def print_bt(stacklevel: int = 0) -> None:
    """Print the captured frames; nothing when the code runs as written."""


def print_guards() -> None:
    """Print the guards so far; nothing when the code runs as written."""


def graph_break() -> None:
    """Cut the graph here; nothing when the code runs as written."""


def assert_static(val: Any) -> None:
    """Raise AssertionError for a number that may be another one at the next call; nothing as written."""


def force_static(val: Any) -> None:
    """Make a number a constant of the graph; nothing when the code runs as written."""


def enter_debugger() -> None:
    """`comptime.breakpoint()`: enter the debugger with the context as `ctx`; nothing when the code runs as written."""


def sleep(sec: float) -> None:
    """Let the compile wait; nothing when the code runs as written."""


def print_value(e: Any) -> None:
    """`comptime.print(e)`: print what is known of a value; the value itself when the code runs as written."""
    print(e)


# Under `comptime`, by name. What takes a stack level looks at the context and gives None.
_SHOW: dict[Callable[..., Any], Callable[..., None]] = {
    print_locals: ComptimeContext.print_locals,
    print_value_stack: ComptimeContext.print_value_stack,
    print_disas: ComptimeContext.print_disas,
    print_bt: ComptimeContext.print_bt,
}
_OTHERS = (print_graph, print_guards, print_value_stack_and_return, graph_break, assert_static, force_static, sleep)
for _convenience in (*_SHOW, *_OTHERS):
    setattr(comptime, _convenience.__name__, _convenience)
for _name, _convenience in (("print", print_value), ("breakpoint", enter_debugger)):
    setattr(comptime, _name, _convenience)


@registry.function(comptime)
def _comptime(tx: Tracer, fn: VariableTracker, fallback_fn: VariableTracker | None = None) -> VariableTracker:
    with _errors_of_the_user():
        callback = _real_function(tx, fn)
        if tx.attempt == 0:
            callback(ComptimeContext(tx))
    return ConstantVariable(None)


def _once(tx: Tracer, act: Callable[[ComptimeContext], object]) -> VariableTracker:
    """Act in the first of two traces of a frame."""
    if tx.attempt == 0:
        with _errors_of_the_user():
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
def _errors_of_the_user() -> Iterator[None]:
    """What a callback raises ends the compile; it is no reason to run as written in silence."""
    try:
        yield
    except MinidynamoError:
        raise
    except Exception as error:
        what = f"a comptime callback raised {summary(error)}"
        fix = "Repair the callback; its own error is the cause of this one."
        raise ComptimeError(Diagnostic("MD107", what, fix=fix)) from error


def _real_function(tx: Tracer, fn: VariableTracker) -> Callable[[ComptimeContext], object]:
    """The callback as a function that can be called now, its closure filled with what is known."""
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
