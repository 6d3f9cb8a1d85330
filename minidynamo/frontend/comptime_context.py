"""Owns what a comptime callback is given: a view of the frame that is being captured, and of its values.

It captures nothing. When a callback runs, and the functions that look at the context at once, are in `comptime.py`.
"""

from __future__ import annotations

import contextlib
import dis
import sys
import time
from typing import Any, TextIO

import torch
from torch import fx

from minidynamo.core import directives
from minidynamo.guards.failures import describe as describe_guards
from minidynamo.tracer.lazy.lazy_value import realize
from minidynamo.tracer.numbers.arithmetic import involves_number
from minidynamo.tracer.protocol import FrameView, Tracer
from minidynamo.tracer.records.constants import NotConstant, as_constant
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import CellVariable, FunctionVariable
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import DictVariable, SequenceVariable, SetVariable, TupleVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.objects import ObjectVariable
from minidynamo.variables.tensors import TensorVariable


class _Appending(fx.proxy.GraphAppendingTracer):
    """Adds what is computed with a proxy to the graph, and keeps it there though the program does not read it."""

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
        """The class the value has at run time."""
        return self._variable.python_type

    def is_proxy(self) -> bool:
        """Whether the value is computed by the graph."""
        return isinstance(self._variable, TensorVariable)

    def as_proxy(self) -> Any:
        """A torch.fx.Proxy (or a tuple or list of them): what is done with it becomes nodes of the graph.

        Raises TypeError for anything else.
        """
        if isinstance(self._variable, SequenceVariable) and self._variable.cls in (tuple, list):
            return self._variable.cls(ComptimeVar(self._tx, item).as_proxy() for item in self._variable.items)
        if not isinstance(self._variable, TensorVariable):
            raise TypeError(f"as_proxy() needs a tensor, and this is {self!r}")
        self._tx.graph.use(self._variable)
        return fx.Proxy(self._variable.node, _Appending(self._tx.graph.graph))

    def as_fake(self) -> torch.Tensor:
        """The fake tensor: shape, strides, dtype and device without data. Raises TypeError for anything else."""
        if not isinstance(self._variable, TensorVariable):
            raise TypeError(f"as_fake() needs a tensor, and this is {self!r}")
        return self._tx.graph.use(self._variable)

    def as_python_constant(self) -> Any:
        """The value itself; a number becomes static. Raises TypeError when it is only known when the graph runs."""
        try:
            return as_constant(self._variable)
        except NotConstant:
            raise TypeError(f"{self!r} is not known while compiling") from None

    def is_python_constant(self) -> bool:
        """Whether `as_python_constant` has an answer that nothing needs to be made static for."""
        if self.is_dynamic():
            return False
        try:
            as_constant(self._variable)
        except NotConstant:
            return False
        return True

    def size(self, dim: int | None = None) -> Any:
        """The shape of a tensor, or one dimension of it."""
        shape = self.as_fake().shape
        return shape if dim is None else shape[dim]

    def is_dynamic(self) -> bool:
        """Whether it is a number that may be another one at the next call."""
        if not isinstance(self._variable, NumberVariable):
            return False
        value = self._variable.value
        return not isinstance(value, torch.SymInt) or value.node.maybe_as_int() is None

    def force_static(self) -> None:
        """Make a number a constant, with a guard. Raises AssertionError for a tensor."""
        if self.is_proxy():
            raise AssertionError(f"only numbers can be made static, and this is {self!r}")
        if isinstance(self._variable, NumberVariable):
            self._variable.pin()

    def unstable_variable(self) -> VariableTracker:
        """What the tracer itself has for the value. It may be something else in any later version."""
        return self._variable


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
        self._tx.call(directives.graph_break, [ConstantVariable(message)])

    def assert_static(self, value: ComptimeVar) -> None:
        """Raise AssertionError for a number that may be another one at the next call."""
        assert not value.is_dynamic(), "expected static but got dynamic"

    def sleep(self, seconds: float) -> None:
        """Let the compile wait."""
        time.sleep(seconds)

    def unstable_tracer(self) -> Tracer:
        """The tracer itself. It may be something else in any later version."""
        return self._tx

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
            variable = realize(self._tx, variable)
            print(f"{name} = {describe(self._tx, variable)}", file=file or sys.stdout)

    def print(self, value: object, *, file: TextIO | None = None) -> None:
        """Print a value; a ComptimeVar as what is known of it."""
        print(value, file=file or sys.stdout)

    def print_value_stack(self, *, stacklevel: int = 0, file: TextIO | None = None) -> None:
        """Print `- value` for each value that an unfinished expression of the frame has ready, the oldest first."""
        for variable in self._frame(stacklevel).on_stack():
            variable = realize(self._tx, variable)
            print(f"- {describe(self._tx, variable)}", file=file or sys.stdout)

    def print_disas(self, *, stacklevel: int = 0, file: TextIO | None = None) -> None:
        """Print the bytecode of the frame, with an arrow at the instruction where it is."""
        frame = self._frame(stacklevel)
        dis.disco(frame.code, lasti=frame.offset, file=file or sys.stdout)

    def print_bt(self, *, stacklevel: int = 0, file: TextIO | None = None) -> None:
        """Print the frames that are being captured like a traceback, the root first."""
        self._frame(stacklevel)
        frames = self._tx.frames[: len(self._tx.frames) - self._depth - stacklevel + 1]
        for where in (frame.location for frame in frames):
            print(f'  File "{where.filename}", line {where.lineno}, in {where.function}', file=file or sys.stdout)
            print(f"    {where.source_line().strip()}", file=file or sys.stdout)

    def print_guards(self, *, file: TextIO | None = None) -> None:
        """Print the guards so far, one per line, sorted."""
        lines = describe_guards(self._tx.graph.guards).splitlines()
        print("\n".join(sorted(lines)), file=file or sys.stdout)


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
    if isinstance(variable, (FunctionVariable, ObjectVariable)) and variable.value is not None:
        return repr(variable.value)
    return f"<{variable.python_type.__name__}>"
