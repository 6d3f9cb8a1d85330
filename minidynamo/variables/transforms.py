"""Owns the tracker of what `torch.func.vjp` gives besides values: a function that computes gradients at that place.

What a call of it means is in `tracer/handlers/vjp.py`.
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
    """The gradient function of `vjp`: `made` over `subgraph`, a node of the graph, on `inputs`, the primals last.

    `versions` tells how often each input had been written to when the program called `vjp`, with `settings` in force;
    `primals` is how many of the inputs are primals.
    """

    made: Transformation
    subgraph: torch.fx.Node
    module: torch.fx.GraphModule
    inputs: list[TensorVariable | NumberVariable]
    primals: int
    versions: tuple[int | None, ...]
    settings: Settings

    @property
    def python_type(self) -> type:
        return PullBack
