"""Owns the record of a graph inside a graph: a branch of `cond`, and what of the surroundings it reads.

It runs nothing and decides nothing; `output_graph.py` writes operations into it while it is open.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import torch.fx

from minidynamo.compat import memory_of
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.tensors import TensorVariable

GraphValue = TensorVariable | NumberVariable
"""What a graph takes from the one around it."""


@dataclass(eq=False)
class Subgraph:
    """A graph whose placeholders are tensors and numbers of the surrounding ones, in the order of `inputs`.

    Where it does not take numbers (`takes_numbers`), sizes and the like are constants in it. `asks_grad_mode`: what is
    traced into it has asked whether gradients are wanted; `writes`: it writes to an input; `draws`: it draws random
    numbers; `has_plain_numbers`: a call takes one that varies as a plain number. `may_be_left`: what it is traced for
    may as well run as written, behind a graph break.
    """

    takes_numbers: bool = False
    may_be_left: bool = False
    asks_grad_mode: bool = False
    writes: bool = False
    draws: bool = False
    has_plain_numbers: bool = False
    graph: torch.fx.Graph = field(default_factory=torch.fx.Graph)
    inputs: dict[GraphValue, torch.fx.Node] = field(default_factory=dict)
    _facts: dict[TensorVariable, tuple[object, ...]] = field(default_factory=dict)
    _written: list[TensorVariable] = field(default_factory=list)

    @property
    def tensors(self) -> list[TensorVariable]:
        """The tensors among the inputs."""
        return [variable for variable in self.inputs if isinstance(variable, TensorVariable)]

    def take(self, variables: Iterable[GraphValue]) -> None:
        """Make the values inputs, behind those that are inputs already."""
        for variable in variables:
            self.node_of(variable)

    def node_of(self, variable: GraphValue) -> torch.fx.Node:
        """The node that stands for a value in this graph; one that another graph has becomes an input."""
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
        """Another placeholder, of an argument that is called `name` if none is called so yet."""
        taken = {node.target for node in self.graph.find_nodes(op="placeholder")}
        node = self.graph.placeholder(name)
        if name in taken:
            node.target = node.name
        return node

    def input_in_memory_of(self, fake: torch.Tensor) -> TensorVariable | None:
        """The input that a tensor is, or shares memory with."""
        return next((variable for variable in self.tensors if memory_of(variable.fake) == memory_of(fake)), None)

    def note_write(self, fake: torch.Tensor) -> None:
        """Remember that an operation wrote to a tensor, if that is an input's memory."""
        found = self.input_in_memory_of(fake)
        if found is not None:
            self.writes = True
            self._written.append(found)

    def take_written(self) -> TensorVariable | None:
        """An input that was written to since the last call."""
        return self._written.pop() if self._written else None

    def changed_facts(self) -> TensorVariable | None:
        """An input that has another shape, other strides or another history than when it came in."""
        return next((variable for variable, facts in self._facts.items() if _facts(variable.fake) != facts), None)


def _facts(fake: torch.Tensor) -> tuple[object, ...]:
    return tuple(fake.shape), fake.stride(), fake.requires_grad
