"""Owns comptime during capture: the view that callbacks get of the captured frame and its values, and the handlers.

It captures nothing. `comptime.py` has the public functions, which the handlers find by name.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
import sys
import time
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import torch
from torch import fx

from minidynamo.core import directives
from minidynamo.core.artifacts import is_own_file
from minidynamo.errors import ComptimeError, Diagnostic, MinidynamoError, UserLocation, summary
from minidynamo.guards.check import describe as describe_guards
from minidynamo.tracer.frames.interpreter import Frame, Tracer
from minidynamo.tracer.numbers.arithmetic import involves_number
from minidynamo.tracer.records import registry
from minidynamo.tracer.records.constants import NotConstant, as_constant
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.callables import BuiltinVariable, CellVariable, FunctionVariable, NestedFunctionVariable
from minidynamo.variables.containers import DictVariable, SequenceVariable, SetVariable, TupleVariable
from minidynamo.variables.objects import ObjectVariable
from minidynamo.variables.tensors import TensorVariable


class _Appending(fx.proxy.GraphAppendingTracer):
    """Adds operations on a proxy to the graph, and keeps them even if the program does not use the results."""

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.meta["mutates"] = True
        return node


class ComptimeVar:
    """A value as the tracer knows it. `repr` shows constants as they are and tensors by shape and dtype."""

    def __init__(self, tx: Tracer, variable: VariableTracker) -> None:
        self._tx = tx
        self._variable = variable

    def __repr__(self) -> str:
        return describe(self._tx, self._variable)

    def python_type(self) -> type:
        """Returns the class of the value at run time."""
        return self._variable.python_type

    def is_proxy(self) -> bool:
        """Returns whether the graph computes the value."""
        return isinstance(self._variable, TensorVariable)

    def as_proxy(self) -> Any:
        """Returns a torch.fx.Proxy (or a tuple or list of proxies): operations on it become nodes of the graph.

        Raises TypeError for any other value.
        """
        if isinstance(self._variable, SequenceVariable) and self._variable.cls in (tuple, list):
            return self._variable.cls(ComptimeVar(self._tx, item).as_proxy() for item in self._variable.items)
        if not isinstance(self._variable, TensorVariable):
            raise TypeError(f"as_proxy() needs a tensor, and this is {self!r}")
        self._tx.graph.use(self._variable)
        return fx.Proxy(self._variable.node, _Appending(self._tx.graph.graph))

    def as_fake(self) -> Any:
        """Returns the fake tensor, which has shape, strides, dtype and device without data, or the symbol of a varying
        size. Raises TypeError for other values.
        """
        if isinstance(self._variable, NumberVariable) and isinstance(self._variable.value, torch.SymInt):
            return self._variable.value
        if not isinstance(self._variable, TensorVariable):
            raise TypeError(f"as_fake() needs a tensor, and this is {self!r}")
        return self._tx.graph.use(self._variable)

    def as_python_constant(self) -> Any:
        """Returns the value itself; a number becomes static. Raises TypeError for a value that only the running graph
        knows.
        """
        try:
            return as_constant(self._variable)
        except NotConstant:
            raise TypeError(f"{self!r} is not known while compiling") from None

    def is_python_constant(self) -> bool:
        """Returns whether `as_python_constant` succeeds without making a number static."""
        if self.is_dynamic():
            return False
        try:
            as_constant(self._variable)
        except NotConstant:
            return False
        return True

    def size(self, dim: int | None = None) -> Any:
        """Returns the shape of a tensor, or one dimension of the shape."""
        shape = self.as_fake().shape
        return shape if dim is None else shape[dim]

    def is_dynamic(self) -> bool:
        """Returns whether the value is a number that may change between calls."""
        if not isinstance(self._variable, NumberVariable):
            return False
        value = self._variable.value
        return not isinstance(value, torch.SymInt) or value.node.maybe_as_int() is None

    def force_static(self) -> None:
        """Makes a number a constant, with a guard. Raises AssertionError for a tensor."""
        if self.is_proxy():
            raise AssertionError(f"only numbers can be made static, and this is {self!r}")
        if isinstance(self._variable, NumberVariable):
            self._variable.specialize()

    def unstable_variable(self) -> VariableTracker:
        """Returns the tracker of the value. Its class may change in any later version."""
        return self._variable


class ComptimeContext:
    """The argument of a callback: a view of the frame being captured, at the position of the callback."""

    def __init__(self, tx: Tracer, depth: int = 1) -> None:
        self._tx = tx
        self._depth = depth

    def _frame(self, stacklevel: int) -> Frame:
        outer = len(self._tx.frames) - self._depth
        if not 0 <= stacklevel <= outer:
            raise IndexError(f"stacklevel={stacklevel}: {outer} frames are being captured around this one")
        return self._tx.frames[-self._depth - stacklevel]

    def get_local(self, name: str, *, stacklevel: int = 0) -> ComptimeVar:
        """Returns the local or closed-over variable `name`, `stacklevel` frames further out. Raises KeyError if
        unbound.
        """
        return ComptimeVar(self._tx, self._frame(stacklevel).local_variables[name])

    def graph(self) -> torch.fx.Graph:
        """Returns the torch-level FX graph so far, not a copy."""
        return self._tx.graph.graph

    def graph_break(self, message: str = "") -> None:
        """Cuts the graph here; with fullgraph=True that is an error."""
        self._tx.call(directives.graph_break, [ConstantVariable(message)])

    def assert_static(self, value: ComptimeVar) -> None:
        """Raises AssertionError for a number that may change between calls."""
        assert not value.is_dynamic(), "expected static but got dynamic"

    def sleep(self, seconds: float) -> None:
        """Delays the compile."""
        time.sleep(seconds)

    def unstable_tracer(self) -> Tracer:
        """Returns the tracer. Its class may change in any later version."""
        return self._tx

    def parent(self) -> ComptimeContext:
        """Returns the context of the calling frame. Raises IndexError if that frame is not being captured."""
        self._frame(1)
        return ComptimeContext(self._tx, self._depth + 1)

    def print_graph(self, *, verbose: bool = False, file: TextIO | None = None) -> None:
        """Prints the graph so far as Python source; `verbose` adds the user's line to each operation."""
        print(_graph_text(self.graph(), verbose), file=file or sys.stdout)

    def print_locals(self, *, stacklevel: int = 0, file: TextIO | None = None) -> None:
        """Prints `name = value` for each bound local, in the order of binding."""
        for name, variable in self._frame(stacklevel).local_variables.items():
            variable = variable.realize()
            print(f"{name} = {describe(self._tx, variable)}", file=file or sys.stdout)

    def print(self, value: object, *, file: TextIO | None = None) -> None:
        """Prints a value; a ComptimeVar as the tracer knows it."""
        print(value, file=file or sys.stdout)

    def print_value_stack(self, *, stacklevel: int = 0, file: TextIO | None = None) -> None:
        """Prints `- value` for each value that an unfinished expression of the frame has computed, the oldest first."""
        for variable in self._frame(stacklevel).on_stack():
            variable = variable.realize()
            print(f"- {describe(self._tx, variable)}", file=file or sys.stdout)

    def print_disas(self, *, stacklevel: int = 0, file: TextIO | None = None) -> None:
        """Prints the bytecode of the frame, with an arrow at the current instruction."""
        frame = self._frame(stacklevel)
        dis.disco(frame.code, lasti=frame.offset, file=file or sys.stdout)

    def print_bt(self, *, stacklevel: int = 0, file: TextIO | None = None) -> None:
        """Prints the frames that are being captured like a traceback, the root first."""
        self._frame(stacklevel)
        frames = self._tx.frames[: len(self._tx.frames) - self._depth - stacklevel + 1]
        for where in (frame.location for frame in frames):
            print(f'  File "{where.filename}", line {where.lineno}, in {where.function}', file=file or sys.stdout)
            print(f"    {where.source_line().strip()}", file=file or sys.stdout)

    def print_guards(self, *, file: TextIO | None = None) -> None:
        """Prints the guards so far, one per line, sorted."""
        lines = describe_guards(self._tx.graph.guards).splitlines()
        print("\n".join(sorted(lines)), file=file or sys.stdout)


def _graph_text(graph: torch.fx.Graph, verbose: bool) -> str:
    if verbose:
        for node in graph.nodes:
            where = node.meta.get("user_location")
            if where is not None:  # FX reads the line in this form
                line = f'File "{where.filename}", line {where.lineno}, in {where.function}'
                node.meta.setdefault("stack_trace", f"{line}\n    {where.source_line().strip()}\n")
    text = graph.python_code("self", verbose=verbose).src
    return text.strip("\n")


# Trackers with the real object, whose `repr` is its text.
_REAL = (BuiltinVariable, FunctionVariable, ObjectVariable)


def describe(tx: Tracer, variable: VariableTracker) -> str:
    """Returns a tracked value as text: constants by `repr`, tensors by shape and dtype, containers by contents."""
    if isinstance(variable, NumberVariable):
        return str(variable.value)
    if not involves_number(variable):
        with contextlib.suppress(NotConstant):
            return repr(as_constant(variable))
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
    if isinstance(variable, _REAL) and variable.value is not None:
        return repr(variable.value)
    if isinstance(variable, NestedFunctionVariable):
        return f"<function {variable.qualname}>"
    return f"<{variable.python_type.__name__}>"


# The functions of `minidynamo/comptime.py`, by name: the action during capture, with the function's own parameters.
_ACTIONS: dict[str, Callable[..., object]] = {
    "print_graph": lambda ctx: ctx.print_graph(),
    "print_guards": lambda ctx: ctx.print_guards(),
    "print_locals": lambda ctx, stacklevel=0: ctx.print_locals(stacklevel=stacklevel),
    "print_value_stack": lambda ctx, stacklevel=0: ctx.print_value_stack(stacklevel=stacklevel),
    "print_value_stack_and_return": lambda ctx, e, stacklevel=0: ctx.print_value_stack(stacklevel=stacklevel),
    "print_disas": lambda ctx, stacklevel=0: ctx.print_disas(stacklevel=stacklevel),
    "print_bt": lambda ctx, stacklevel=0: ctx.print_bt(stacklevel=stacklevel),
    "print_value": lambda ctx, e: ctx.print(e),
    "assert_static": lambda ctx, val: ctx.assert_static(val),
    "force_static": lambda ctx, val: val.force_static(),
    "sleep": lambda ctx, sec: ctx.sleep(sec),
    "enter_debugger": lambda ctx: breakpoint(),
}


def _handler(name: str, act: Callable[..., object]) -> Callable[..., VariableTracker]:
    """Returns the handler of a function: it acts in the first of two traces of a frame."""
    signature = inspect.signature(act)

    def handler(tx: Tracer, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
        context = ComptimeContext(tx)
        bound = dict([*signature.bind(context, *args, **kwargs).arguments.items()][1:])
        numbers = {name: as_constant(bound[name]) for name in ("stacklevel", "sec") if name in bound}
        if tx.attempt == 0:
            with _callback_errors(tx):
                act(context, **{name: ComptimeVar(tx, value) for name, value in bound.items()} | numbers)
        return bound["e"] if name == "print_value_stack_and_return" else ConstantVariable(None)

    handler.__signature__ = signature  # type: ignore[attr-defined]
    return handler


for _name, _act in _ACTIONS.items():
    registry.late_function("minidynamo.comptime", _name)(_handler(_name, _act))


@registry.late_function("minidynamo.comptime", "graph_break")
def _graph_break(tx: Tracer) -> VariableTracker:
    ComptimeContext(tx).graph_break()
    return ConstantVariable(None)


@registry.late_function("minidynamo.comptime", "comptime")
def _comptime(tx: Tracer, fn: VariableTracker, fallback_fn: VariableTracker | None = None) -> VariableTracker:
    with _callback_errors(tx):
        callback = _real_function(tx, fn)
        if tx.attempt == 0:
            callback(ComptimeContext(tx))
    return ConstantVariable(None)


@contextlib.contextmanager
def _callback_errors(tx: Tracer) -> Iterator[None]:
    """Raises errors of a callback as ComptimeError: they end the compile instead of a silent fallback to eager."""
    try:
        yield
    except MinidynamoError:
        raise
    except Exception as error:
        what = f"a comptime callback raised {summary(error)}"
        fix = "Repair the callback; its own error is the cause of this one."
        frames = traceback.extract_tb(error.__traceback__)
        lines = [UserLocation(f.filename, f.lineno or 0, f.name) for f in frames if not is_own_file(f.filename)]
        raise ComptimeError(Diagnostic("MD107", what, fix=fix, where=[tx.location(), *lines][-1])) from error


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
