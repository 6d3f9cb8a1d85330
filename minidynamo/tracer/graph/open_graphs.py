"""Owns which graph operations go into: the root, or a graph inside it that is being traced.

What a subgraph knows is in `subgraphs.py`; the nodes over closed ones are made by `output_graph.py`.
"""

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
    """The root graph and the subgraphs that are open, the innermost last; the modules made of closed ones."""

    def __init__(self) -> None:
        self.root = torch.fx.Graph()
        self._subgraphs: list[Subgraph] = []
        self._modules: dict[str, torch.fx.GraphModule] = {}

    @property
    def subgraph(self) -> Subgraph | None:
        """The innermost open subgraph."""
        return self._subgraphs[-1] if self._subgraphs else None

    @property
    def graph(self) -> torch.fx.Graph:
        """The graph that operations go into."""
        return self._subgraphs[-1].graph if self._subgraphs else self.root

    @property
    def graphs(self) -> list[torch.fx.Graph]:
        """All that are open, the root first."""
        return [self.root, *(subgraph.graph for subgraph in self._subgraphs)]

    @property
    def takes_numbers(self) -> bool:
        """Whether the graph takes numbers that are not known, and computes with them."""
        return all(subgraph.takes_numbers for subgraph in self._subgraphs)

    @property
    def may_be_left(self) -> bool:
        """Whether the root graph may end in front of what the open subgraphs are traced for."""
        return all(subgraph.may_be_left for subgraph in self._subgraphs)

    def holds(self, node: torch.fx.Node) -> bool:
        """Whether a node is in a graph that is open: in one that is closed, nobody can use it any more."""
        return any(node.graph is graph for graph in self.graphs)

    def node_of(self, variable: GraphValue) -> torch.fx.Node:
        """The node that stands for a value in the graph that operations go into."""
        if self.subgraph is not None:
            return self.subgraph.node_of(variable)
        assert variable.node is not None
        return variable.node

    @contextlib.contextmanager
    def open(
        self, inputs: Iterable[GraphValue], *, takes_numbers: bool = False, may_be_left: bool = False
    ) -> Iterator[Subgraph]:
        """Until the block ends, operations go into a graph of its own, which takes `inputs` and what else it reads."""
        subgraph = Subgraph(takes_numbers, may_be_left)
        self._subgraphs.append(subgraph)
        subgraph.take(inputs)
        try:
            yield subgraph
        finally:
            self._subgraphs.pop()
            if self.subgraph is not None:
                self.subgraph.asks_grad_mode |= subgraph.asks_grad_mode
                self.subgraph.draws |= subgraph.draws
                self.subgraph.has_plain_numbers |= subgraph.has_plain_numbers

    def close(self, subgraph: Subgraph, outputs: Sequence[TensorVariable], name: str) -> torch.fx.Node:
        """Let the subgraph return `outputs`; gives the node that stands for it in the graph around it."""
        give(subgraph.graph, outputs)
        remove_dead_code(subgraph.graph)
        number = len(self._modules) // 2
        while f"{name}_{number}" in self._modules:
            number += 1
        name = f"{name}_{number}"
        self._modules[name] = compat.graph_module(self._modules, subgraph.graph)
        return self.graph.create_node("get_attr", name, name=name)

    def module(self, node: torch.fx.Node) -> torch.fx.GraphModule:
        """The closed subgraph that a node stands for."""
        return self._modules[str(node.target)]

    def root_module(self) -> torch.fx.GraphModule:
        """The root with all subgraphs."""
        modules: dict[str, Any] = {**self._modules}
        return compat.graph_module(modules, self.root)


def give(graph: torch.fx.Graph, outputs: Sequence[TensorVariable | HookVariable]) -> None:
    """Let a graph return these values."""
    output = graph.output(tuple(variable.node for variable in outputs))
    output.meta["example_value"] = tuple(variable.fake for variable in outputs)
