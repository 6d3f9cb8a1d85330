"""Owns the record of a subgraph: a branch of `cond`, for example, and the values that it reads from the surrounding
graph.

Operations are not recorded here, but by `output_graph.py` while the subgraph is open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import torch.fx

from minidynamo.compat import memory_of
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.tensors import TensorVariable

GraphValue = TensorVariable | NumberVariable
"""A value that a graph takes from the surrounding graph."""


@dataclass(eq=False)
class Subgraph:
    """A graph whose placeholders are tensors and numbers of the surrounding graphs, in the order of `inputs`."""

    #: symbolic numbers may be inputs; otherwise sizes and other numbers are constants here
    takes_numbers: bool = False
    #: the call for which the graph is traced may run eagerly instead, after a graph break
    may_run_eagerly: bool = False
    #: the traced code has read whether gradients are enabled
    reads_grad_mode: bool = False
    #: the graph writes to an input
    writes: bool = False
    #: the graph draws random numbers
    draws: bool = False
    #: a call takes a scalar argument that varies
    has_scalar_arguments: bool = False
    graph: torch.fx.Graph = field(default_factory=torch.fx.Graph)
    #: value of a surrounding graph -> placeholder
    inputs: dict[GraphValue, torch.fx.Node] = field(default_factory=dict)
    #: input tensor -> shape, strides and requires_grad when it became an input
    _facts: dict[TensorVariable, tuple[object, ...]] = field(default_factory=dict)
    #: inputs written since the last `take_written`
    _written: list[TensorVariable] = field(default_factory=list)

    @property
    def tensors(self) -> list[TensorVariable]:
        """Returns the tensors among the inputs."""
        return [variable for variable in self.inputs if isinstance(variable, TensorVariable)]

    def take(self, variables: Iterable[GraphValue]) -> None:
        """Makes the values inputs, after the present inputs."""
        for variable in variables:
            self.node_of(variable)

    def node_of(self, variable: GraphValue) -> torch.fx.Node:
        """Returns the node of a value in this graph; a value of a different graph becomes an input."""
        assert variable.node is not None
        if variable.node.graph is self.graph:
            return variable.node
        if variable not in self.inputs:
            same = next((node for other, node in self.inputs.items() if other.node is variable.node), None)
            if same is not None:  # a number that was read twice
                return same
            last = next(reversed(self.inputs.values()), None)
            with self.graph.inserting_before(None) if last is None else self.graph.inserting_after(last):
                node = self.placeholder(variable.node.name)
            if isinstance(variable, TensorVariable):
                node.meta["example_value"] = variable.fake
                self._facts[variable] = _facts(variable.fake)
            else:
                node.meta["example_value"] = variable.node.meta["example_value"]
            node.meta["user_location"] = variable.node.meta.get("user_location")
            self.inputs[variable] = node
        return self.inputs[variable]

    def placeholder(self, name: str) -> torch.fx.Node:
        """Returns a new placeholder, named `name` unless that name is taken."""
        taken = {node.target for node in self.graph.find_nodes(op="placeholder")}
        node = self.graph.placeholder(name)
        if name in taken:
            node.target = node.name
        return node

    def input_in_memory_of(self, fake: torch.Tensor) -> TensorVariable | None:
        """Returns the input that is the tensor, or shares memory with it."""
        return next((variable for variable in self.tensors if memory_of(variable.fake) == memory_of(fake)), None)

    def record_write(self, fake: torch.Tensor) -> None:
        """Records that an operation wrote to a tensor, if it is in an input's memory."""
        found = self.input_in_memory_of(fake)
        if found is not None:
            self.writes = True
            self._written.append(found)

    def take_written(self) -> TensorVariable | None:
        """Returns an input that was written since the last call."""
        return self._written.pop() if self._written else None

    def changed_facts(self) -> TensorVariable | None:
        """Returns an input whose shape, strides or history have changed since it became an input."""
        return next((variable for variable, facts in self._facts.items() if _facts(variable.fake) != facts), None)


def _facts(fake: torch.Tensor) -> tuple[object, ...]:
    return tuple(fake.shape), fake.stride(), fake.requires_grad
