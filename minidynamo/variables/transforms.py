"""Owns the tracker of the gradient function that `torch.func.vjp` returns.

Calls of the gradient function are in `tracer/handlers/vjp.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.fx

from minidynamo.graph.func_transforms import PullBack, Transformation
from minidynamo.graph.torch_settings import Settings
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.tensors import TensorVariable


@dataclass(eq=False)
class PullBackVariable(VariableTracker):
    """The gradient function of `vjp`: `transformation` over `subgraph`, a node of the graph, at the values `inputs`."""

    transformation: Transformation
    subgraph: torch.fx.Node
    module: torch.fx.GraphModule
    #: The inputs of the subgraph, the primals last.
    inputs: list[TensorVariable | NumberVariable]
    #: The number of primals.
    primals: int
    #: The version counter of each input at the call of `vjp`.
    versions: tuple[int | None, ...]
    #: The torch settings at the call of `vjp`.
    settings: Settings

    @property
    def python_type(self) -> type:
        return PullBack
