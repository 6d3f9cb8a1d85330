"""Owns the trackers of tensors and other values that exist only when the graph runs.

It does not emit graph nodes; `tracer/graph/output_graph.py` does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.fx
from torch.utils.hooks import RemovableHandle

from minidynamo.variables.base import VariableTracker


@dataclass(eq=False)
class TensorVariable(VariableTracker):
    """A tensor: `node` computes it in the graph, `fake` has its dtype, device, shape and strides but no data.

    `cls` is the class at run time (torch.Tensor or torch.nn.Parameter).
    """

    node: torch.fx.Node
    fake: torch.Tensor
    cls: type = torch.Tensor

    @property
    def python_type(self) -> type:
        return self.cls


@dataclass(eq=False)
class StorageVariable(VariableTracker):
    """What `tensor.untyped_storage()` gives for the tensor `of`: the memory of all tensors that share it.

    `owner` is the tensor from outside that lies there; None for memory that the graph makes. `size` is how many bytes
    it has by now, None as long as it is what it was at the beginning and nobody has asked. `is_touched`: something
    about its size is known, which guards check; `is_resized`: the program has given it another one.
    """

    of: TensorVariable
    owner: TensorVariable | None
    size: VariableTracker | None = None
    is_touched: bool = False
    is_resized: bool = False

    @property
    def python_type(self) -> type:
        return torch.UntypedStorage


@dataclass(eq=False)
class HookVariable(VariableTracker):
    """What `tensor.register_hook(function)` gives: a handle, which `node` makes when the graph runs."""

    node: torch.fx.Node
    fake: None = None

    @property
    def python_type(self) -> type:
        return RemovableHandle
