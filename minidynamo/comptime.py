"""Owns comptime: user code that runs while a function is being captured, at exactly the place where it stands.

It changes nothing in what is captured, except for `graph_break`. Each callback runs once per capture: when a graph
break makes the tracer start over, what was told already is not told again.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TextIO

import torch

from minidynamo import steering
from minidynamo.errors import ComptimeError, Diagnostic, InternalError, MinidynamoError
from minidynamo.tracer import registry
from minidynamo.tracer.constants import NotConstant, as_constant
from minidynamo.tracer.protocol import FrameView, Tracer
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import CellVariable, FunctionVariable, NestedFunctionVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictVariable, SequenceVariable, SetVariable, TupleVariable
from minidynamo.variables.objects import ObjectVariable
from minidynamo.variables.tensors import TensorVariable


class ComptimeVar:
    """A value as the tracer knows it. `repr` shows constants as they are and tensors by shape and dtype."""

    def __init__(self, tx: Tracer, variable: VariableTracker) -> None:
        self._tx = tx
        self._variable = variable

    def __repr__(self) -> str:
        return describe(self._tx, self._variable)

    def python_type(self) -> type:
        """The class the value has at run time."""
        return self._variable.python_type

    def is_proxy(self) -> bool:
        """Whether the value is computed by the graph."""
        return isinstance(self._variable, TensorVariable)

    def as_fake(self) -> torch.Tensor:
        """The fake tensor: shape, strides, dtype and device without data. Raises TypeError for anything else."""
        if not isinstance(self._variable, TensorVariable):
            raise TypeError(f"as_fake() needs a tensor, and this is {self!r}")
        return self._tx.graph.use(self._variable)

    def as_python_constant(self) -> Any:
        """The value itself. Raises TypeError when it is only known when the graph runs."""
        try:
            return as_constant(self._variable)
        except NotConstant:
            raise TypeError(f"{self!r} is not known while compiling") from None


class ComptimeContext:
    """What a callback is given: a view of the frame being captured, right where the callback stands."""

    def __init__(self, tx: Tracer, depth: int = 1) -> None:
        self._tx = tx
        self._depth = depth

    def _frame(self, stacklevel: int) -> FrameView:
        outer = len(self._tx.frames) - self._depth
        if not 0 <= stacklevel <= outer:
            raise IndexError(f"stacklevel={stacklevel}: {outer} frames are being captured around this one")
        return self._tx.frames[-self._depth - stacklevel]

    def get_local(self, name: str, *, stacklevel: int = 0) -> ComptimeVar:
        """The local or closed-over variable `name`, `stacklevel` frames further out. Raises KeyError if unbound."""
        return ComptimeVar(self._tx, self._frame(stacklevel).local_variables[name])

    def graph(self) -> torch.fx.Graph:
        """The torch-level FX graph so far; the real one, not a copy."""
        return self._tx.graph.graph

    def graph_break(self, message: str = "") -> None:
        """Cut the graph here; with fullgraph=True that is an error."""
        _break(self._tx, message)

    def parent(self) -> ComptimeContext:
        """The context of the calling frame. Raises IndexError when that is not being captured."""
        self._frame(1)
        return ComptimeContext(self._tx, self._depth + 1)

    def print_graph(self, *, verbose: bool = False, file: TextIO | None = None) -> None:
        """Print the graph so far as Python source; `verbose` adds the user's line to each operation."""
        print(_graph_text(self.graph(), verbose), file=file or sys.stdout)

    def print_locals(self, *, stacklevel: int = 0, file: TextIO | None = None) -> None:
        """Print `name = value` for each bound local, in the order of binding."""
        for name, variable in self._frame(stacklevel).local_variables.items():
            print(f"{name} = {describe(self._tx, variable)}", file=file or sys.stdout)


def comptime(fn: Callable[[ComptimeContext], object], fallback_fn: Callable[[], object] = lambda: None) -> None:
    """Call `fn(ctx)` while the surrounding code is being captured; when it runs as written, call `fallback_fn()`.

    Also a decorator of a function with one argument, which then runs once, where it is defined.
    """
    fallback_fn()


def print_graph() -> None:
    """Print the graph captured so far; nothing when the code runs as written."""


def print_locals(stacklevel: int = 0) -> None:
    """Print the locals of the captured frame; nothing when the code runs as written."""


def graph_break() -> None:
    """Cut the graph here; nothing when the code runs as written."""


def print_value(e: Any) -> None:
    """`comptime.print(e)`: print what is known of a value; the value itself when the code runs as written."""
    print(e)


setattr(comptime, "print", print_value)  # noqa: B010 (a function has no such attribute for type checkers)
for _convenience in (print_graph, print_locals, graph_break):
    setattr(comptime, _convenience.__name__, _convenience)


@registry.function(comptime)
def _comptime(tx: Tracer, fn: VariableTracker, fallback_fn: VariableTracker | None = None) -> VariableTracker:
    with _errors_of_the_user():
        callback = _real_function(tx, fn)
        if tx.attempt == 0:
            callback(ComptimeContext(tx))
    return ConstantVariable(None)


@registry.function(print_value)
def _print_value(tx: Tracer, e: VariableTracker) -> VariableTracker:
    if tx.attempt == 0:
        print(describe(tx, e))
    return ConstantVariable(None)


@registry.function(print_graph)
def _print_graph(tx: Tracer) -> VariableTracker:
    if tx.attempt == 0:
        ComptimeContext(tx).print_graph()
    return ConstantVariable(None)


@registry.function(print_locals)
def _print_locals(tx: Tracer, stacklevel: VariableTracker | None = None) -> VariableTracker:
    if tx.attempt == 0:
        level = 0 if stacklevel is None else as_constant(stacklevel)
        with _errors_of_the_user():
            ComptimeContext(tx).print_locals(stacklevel=level)
    return ConstantVariable(None)


@registry.function(graph_break)
def _graph_break(tx: Tracer) -> VariableTracker:
    _break(tx, "")


def _break(tx: Tracer, message: str) -> NoReturn:
    tx.call(steering.graph_break, [ConstantVariable(message)])
    raise InternalError(Diagnostic("MD299", "a graph break was asked for and did not happen"))


@contextlib.contextmanager
def _errors_of_the_user() -> Iterator[None]:
    """What a callback raises ends the compile; it is no reason to run as written in silence."""
    try:
        yield
    except MinidynamoError:
        raise
    except Exception as error:
        what = f"a comptime callback raised {type(error).__name__}: {str(error).partition(chr(10))[0]}"
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


def _graph_text(graph: torch.fx.Graph, verbose: bool) -> str:
    if verbose:
        for node in graph.nodes:
            where = node.meta.get("user_location")
            if where is not None:  # in the form in which FX looks for it
                line = f'File "{where.filename}", line {where.lineno}, in {where.function}'
                node.meta.setdefault("stack_trace", f"{line}\n    {where.source_line().strip()}\n")
    text = graph.python_code("self", verbose=verbose).src
    return text.strip("\n")


def describe(tx: Tracer, variable: VariableTracker) -> str:
    """A tracked value as text: constants as `repr` gives them, tensors by shape and dtype, containers by contents."""
    try:
        return repr(as_constant(variable))
    except NotConstant:
        pass
    if isinstance(variable, TensorVariable):
        fake = tx.graph.use(variable)
        return f"{variable.python_type.__name__}(shape={tuple(fake.shape)}, dtype={fake.dtype})"
    if isinstance(variable, CellVariable) and variable.contents is not None:
        return describe(tx, variable.contents)
    if isinstance(variable, SequenceVariable):
        items = ", ".join(describe(tx, item) for item in variable.items)
        if isinstance(variable, TupleVariable):
            return f"({items},)" if len(variable.items) == 1 else f"({items})"
        return f"[{items}]"
    if isinstance(variable, DictVariable):
        pairs = (f"{describe(tx, key.variable)}: {describe(tx, value)}" for key, value in variable.items.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(variable, SetVariable):
        return "{" + ", ".join(describe(tx, key.variable) for key in variable.items) + "}"
    if isinstance(variable, (FunctionVariable, ObjectVariable)) and variable.value is not None:
        return repr(variable.value)
    return f"<{variable.python_type.__name__}>"
