"""Owns the choice of the graph that records an operation: the root, or a subgraph that is being traced.

The state of a subgraph is not here (`subgraphs.py`), nor are the nodes that call closed subgraphs
(`output_graph.py`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch.fx

from minidynamo import compat
from minidynamo.tracer.graph.dead_code import remove_dead_code
from minidynamo.tracer.graph.subgraphs import GraphValue, Subgraph
from minidynamo.variables.tensors import HookVariable, TensorVariable


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
        give(subgraph.graph, outputs)
        remove_dead_code(subgraph.graph)
        number = len(self._modules) // 2
        while f"{name}_{number}" in self._modules:
            number += 1
        name = f"{name}_{number}"
        self._modules[name] = compat.graph_module(self._modules, subgraph.graph)
        return self.graph.create_node("get_attr", name, name=name)

    def module(self, node: torch.fx.Node) -> torch.fx.GraphModule:
        """Returns the closed subgraph of a node."""
        return self._modules[str(node.target)]

    def root_module(self) -> torch.fx.GraphModule:
        """Returns the root with all subgraphs."""
        modules: dict[str, Any] = {**self._modules}
        return compat.graph_module(modules, self.root)


def give(graph: torch.fx.Graph, outputs: Sequence[TensorVariable | HookVariable]) -> None:
    """Makes a graph return these values."""
    output = graph.output(tuple(variable.node for variable in outputs))
    output.meta["example_value"] = tuple(variable.fake for variable in outputs)
