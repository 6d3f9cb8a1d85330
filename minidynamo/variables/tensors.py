"""Owns the trackers of tensors and other values that exist only when the graph runs.

Emission of graph nodes is in `tracer/graph/output_graph.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.fx
from torch.utils.hooks import RemovableHandle

from minidynamo.variables.base import VariableTracker


@dataclass(eq=False)
class TensorVariable(VariableTracker):
    """A tensor."""

    #: Computes the tensor in the graph.
    node: torch.fx.Node
    #: The fake tensor: dtype, device, shape and strides, without data.
    fake: torch.Tensor
    #: The class at run time (torch.Tensor or torch.nn.Parameter).
    cls: type = torch.Tensor

    @property
    def python_type(self) -> type:
        return self.cls


@dataclass(eq=False)
class StorageVariable(VariableTracker):
    """The storage `of.untyped_storage()`: the memory of all tensors of an alias set."""

    of: TensorVariable
    #: The external tensor that uses the memory; None for memory that the graph allocates.
    owner: TensorVariable | None
    #: The present size in bytes; None if it is unchanged and was not asked.
    size: VariableTracker | None = None
    #: Whether something about the size is known, and guarded.
    size_is_guarded: bool = False
    #: Whether the program changed the size.
    is_resized: bool = False

    @property
    def python_type(self) -> type:
        return torch.UntypedStorage


@dataclass(eq=False)
class HookVariable(VariableTracker):
    """The handle that `tensor.register_hook(function)` returns; `node` makes it when the graph runs."""

    node: torch.fx.Node
    fake: None = None

    @property
    def python_type(self) -> type:
        return RemovableHandle
