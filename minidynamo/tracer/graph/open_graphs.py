"""Owns the subgraphs of a trace, such as a branch of `cond`, with the values that they read from the surrounding graph;
and the choice of the graph that records an operation.

Operations are not recorded here, but by `output_graph.py`, which also adds the nodes that call closed subgraphs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any

import torch
import torch.fx

from minidynamo import compat
from minidynamo.compat import memory_of
from minidynamo.core.records import record
from minidynamo.graph.marks import ONLY_COMPUTES
from minidynamo.tracer.graph.dead_code import only_computes, remove_dead_code
from minidynamo.variables.base import NumberVariable
from minidynamo.variables.tensors import ItemVariable, OpaqueResult, TensorVariable

GraphValue = TensorVariable | NumberVariable
"""A value that a graph takes from the surrounding graph."""


@record(eq=False)
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
        """Adds the values to the inputs, after the present inputs."""
        for variable in variables:
            self.node_of(variable)

    def node_of(self, variable: GraphValue) -> torch.fx.Node:
        """Returns the node of a value in this graph; a value of a different graph becomes an input."""
        assert variable.node is not None
        if variable.node.graph is self.graph:
            return variable.node
        if variable not in self.inputs:
            known = next((node for other, node in self.inputs.items() if other.node is variable.node), None)
            if known is not None:  # a number that was read twice
                return known
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


class OpenGraphs:
    """The root graph, the open subgraphs, innermost last, and the modules of closed subgraphs."""

    def __init__(self) -> None:
        self.root = torch.fx.Graph()
        self._subgraphs: list[Subgraph] = []
        self._modules: dict[str, torch.fx.GraphModule] = {}

    @property
    def subgraph(self) -> Subgraph | None:
        """Returns the innermost open subgraph."""
        return self._subgraphs[-1] if self._subgraphs else None

    @property
    def graph(self) -> torch.fx.Graph:
        """Returns the graph that records operations."""
        return self._subgraphs[-1].graph if self._subgraphs else self.root

    @property
    def graphs(self) -> list[torch.fx.Graph]:
        """Returns all open graphs, the root first."""
        return [self.root, *(subgraph.graph for subgraph in self._subgraphs)]

    @property
    def takes_numbers(self) -> bool:
        """Returns whether the open graph has symbolic numbers, as inputs and in operations."""
        return all(subgraph.takes_numbers for subgraph in self._subgraphs)

    @property
    def may_run_eagerly(self) -> bool:
        """Returns whether the root graph may end before the calls for which the open subgraphs are traced."""
        return all(subgraph.may_run_eagerly for subgraph in self._subgraphs)

    def holds(self, node: torch.fx.Node) -> bool:
        """Returns whether the node is in an open graph; nodes of a closed graph can no longer be used."""
        return any(node.graph is graph for graph in self.graphs)

    def node_of(self, variable: GraphValue) -> torch.fx.Node:
        """Returns the node of a value in the graph that records operations."""
        if self.subgraph is not None:
            return self.subgraph.node_of(variable)
        assert variable.node is not None
        return variable.node

    @contextlib.contextmanager
    def open(
        self, inputs: Iterable[GraphValue], *, takes_numbers: bool = False, may_run_eagerly: bool = False
    ) -> Iterator[Subgraph]:
        """Records operations in a new subgraph until the block ends; its inputs are `inputs`, then any value read in
        the block."""
        subgraph = Subgraph(takes_numbers, may_run_eagerly)
        self._subgraphs.append(subgraph)
        subgraph.take(inputs)
        try:
            yield subgraph
        finally:
            self._subgraphs.pop()
            if self.subgraph is not None:
                self.subgraph.reads_grad_mode |= subgraph.reads_grad_mode
                self.subgraph.draws |= subgraph.draws
                self.subgraph.has_scalar_arguments |= subgraph.has_scalar_arguments

    def close(self, subgraph: Subgraph, outputs: Sequence[TensorVariable], name: str) -> torch.fx.Node:
        """Makes the subgraph return `outputs`; returns the node of the subgraph in the surrounding graph."""
        set_outputs(subgraph.graph, outputs)
        remove_dead_code(subgraph.graph)
        number = len(self._modules) // 2
        while f"{name}_{number}" in self._modules:
            number += 1
        name = f"{name}_{number}"
        self._modules[name] = compat.graph_module(self._modules, subgraph.graph)
        node = self.graph.create_node("get_attr", name, name=name)
        node.meta[ONLY_COMPUTES] = all(map(only_computes, subgraph.graph.nodes))
        return node

    def module(self, node: torch.fx.Node) -> torch.fx.GraphModule:
        """Returns the closed subgraph of a node."""
        return self._modules[str(node.target)]

    def root_module(self) -> torch.fx.GraphModule:
        """Returns the root with all subgraphs."""
        modules: dict[str, Any] = {**self._modules}
        return compat.graph_module(modules, self.root)


def set_outputs(graph: torch.fx.Graph, outputs: Sequence[TensorVariable | OpaqueResult | ItemVariable]) -> None:
    """Lets a graph return these values."""
    output = graph.output(tuple(variable.node for variable in outputs))
    output.meta["example_value"] = tuple(variable.fake for variable in outputs)
