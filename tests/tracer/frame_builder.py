"""Builds TracedFrame records by hand, like the trace of a small function, for tests of the printed reports.

Contains no tests.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo.errors import Diagnostic, UserLocation
from minidynamo.graph.boxed import make_boxed
from minidynamo.guards.source import Item, Local, Source
from minidynamo.tracer.capture.residual import Residual, ResidualContext, print_residual
from minidynamo.tracer.reachable import reachable
from minidynamo.tracer.records.side_effects import SideEffects
from minidynamo.tracer.records.traced_frame import Break, GraphInput, Null, Return, TracedFrame
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.callables import CellVariable
from minidynamo.variables.containers import ListVariable
from minidynamo.variables.objects import ObjectVariable
from minidynamo.variables.tensors import TensorVariable

FAKE = torch.empty(2)
BREAK = Diagnostic("MD201", "`if` on a tensor value", where=UserLocation("train.py", 37, "step"))


class Box:
    """A custom class whose attribute setter must not run."""

    def __init__(self) -> None:
        object.__setattr__(self, "count", 0)

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError("user code ran")


def ones() -> torch.Tensor:
    return torch.ones(2)


class FrameBuilder:
    """A frame: parameters in order of declaration, a graph, a journal."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.side_effects = SideEffects()
        self.parameters: list[str] = []
        self.inputs: list[GraphInput] = []

    def tensor(self, name: str, source: Source | None = None) -> TensorVariable:
        """Adds a tensor argument, or (with a source) a tensor reached from an argument."""
        if source is None:
            self.parameters.append(name)
        node = self.graph.placeholder(name)
        variable = TensorVariable(node, FAKE, source=source or Local(name))
        self.inputs.append(GraphInput(node, source or Local(name), variable))
        return variable

    def tensors(self, name: str, length: int, *, given_up: bool = False) -> ListVariable:
        """Adds a list argument of tensors."""
        self.parameters.append(name)
        node = self.graph.placeholder(name)
        node.meta["steal_arg"] = given_up
        items = tuple(
            TensorVariable(self.graph.call_function(operator.getitem, (node, k)), FAKE, source=Item(Local(name), k))
            for k in range(length)
        )
        variable = ListVariable(list(items), source=Local(name), original=items)
        self.inputs.append(GraphInput(node, Local(name), variable, given_up))
        return variable

    def object(self, name: str, cls: type) -> ObjectVariable:
        """Adds an instance of `cls` as argument."""
        self.parameters.append(name)
        return ObjectVariable(cls, cls, source=Local(name))

    def parameter(self, name: str) -> str:
        self.parameters.append(name)
        return name

    def op(self, target: Callable[..., Any], *args: Any) -> TensorVariable:
        """A graph operation."""
        nodes = [arg.node if isinstance(arg, TensorVariable) else arg for arg in args]
        return TensorVariable(self.graph.call_function(target, tuple(nodes)), FAKE)

    def returns(self, value: VariableTracker) -> TracedFrame:
        return self._frame(Return(value), [value])

    def breaks(
        self,
        local_variables: dict[str, VariableTracker],
        *,
        stack: Sequence[VariableTracker | Null] = (),
        cells: dict[str, CellVariable] | None = None,
        compiled_callee: int | None = None,
    ) -> TracedFrame:
        values = [*(cells or {}).values(), *(v for v in stack if not isinstance(v, Null)), *local_variables.values()]
        leave = Break(7, tuple(stack), local_variables, cells or {}, BREAK, compiled_callee)
        return self._frame(leave, values)

    def _frame(self, leave: Return | Break, values: list[VariableTracker]) -> TracedFrame:
        found, _ = reachable(values, self.side_effects)
        outputs = tuple(v for v in found if isinstance(v, TensorVariable) and v.source is None)
        self.graph.output(tuple(v.node for v in outputs))
        calls = [node for node in self.graph.nodes if node.op == "call_function"]
        gm = fx.GraphModule(torch.nn.Module(), self.graph) if calls else None
        inputs = tuple(self.inputs) if gm is not None else ()
        return TracedFrame("Net.step", (), gm, inputs, outputs, self.side_effects, leave)

    def print(self, traced: TracedFrame, **context: Any) -> Residual:
        """Returns the residual program, with the graph run node by node."""
        context.setdefault("root", True)
        graph = context.pop("graph", None)
        if graph is None and traced.graph is not None:
            graph = make_boxed(traced.graph)
        return print_residual(traced, self.parameters, graph, ResidualContext(**context))
