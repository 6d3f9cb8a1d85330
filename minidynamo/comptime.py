"""Owns comptime: user code that runs during capture, at its position in the captured function.

It changes nothing in the graph, except for `graph_break` and proxies; `frontend/comptime_context.py` has the handlers
of these functions, and the view that a callback may read. Each callback runs once per capture: when a graph break
restarts the tracer, callbacks that have run do not run again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from minidynamo.frontend import comptime_context

T = TypeVar("T")


def comptime(
    fn: Callable[[comptime_context.ComptimeContext], object], fallback_fn: Callable[[], object] = lambda: None
) -> None:
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


_NAMES = {print_value: "print", enter_debugger: "breakpoint"}
for _function in (
    print_graph,
    print_guards,
    print_locals,
    print_value_stack,
    print_value_stack_and_return,
    print_disas,
    print_bt,
    print_value,
    assert_static,
    force_static,
    sleep,
    enter_debugger,
    graph_break,
):
    setattr(comptime, _NAMES.get(_function, _function.__name__), _function)
