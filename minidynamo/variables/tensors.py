"""Owns the trackers of tensors, of other values that exist only when the graph runs, and of numpy arrays.

Emission of graph nodes is in `tracer/graph/output_graph.py`, functions of numpy in `tracer/handlers/numpy_arrays.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.fx
from torch.utils.hooks import RemovableHandle

from minidynamo.core.records import record
from minidynamo.graph.autograd_calls import BackwardState
from minidynamo.variables.base import OF_CLS, VariableTracker


@record(eq=False)
class TensorVariable(VariableTracker):
    """A tensor."""

    python_type = OF_CLS
    #: Computes the tensor in the graph.
    node: torch.fx.Node
    #: The fake tensor: dtype, device, shape and strides, without data.
    fake: torch.Tensor
    #: The class at run time (torch.Tensor or torch.nn.Parameter).
    cls: type = torch.Tensor


@record(eq=False)
class StorageVariable(VariableTracker):
    """The storage `of.untyped_storage()`: the memory of all tensors of an alias set."""

    python_type = torch.UntypedStorage
    of: TensorVariable
    #: The external tensor that uses the memory; None for memory that the graph allocates.
    owner: TensorVariable | None
    #: The present size in bytes; None if it is unchanged and was not asked.
    size: VariableTracker | None = None
    #: Whether something about the size is known, and guarded.
    size_is_guarded: bool = False
    #: Whether the program changed the size.
    is_resized: bool = False


@record(eq=False)
class BackwardStateVariable(VariableTracker):
    """The `BackwardState` of a call, an input of the graph."""

    python_type = BackwardState
    #: The placeholder. Each user registers a hook.
    node: torch.fx.Node


@record(eq=False)
class HookVariable(VariableTracker):
    """The handle that `tensor.register_hook(function)` returns: the attribute `name` of the state after the graph."""

    python_type = RemovableHandle
    #: Registers the hook.
    node: torch.fx.Node
    state: BackwardStateVariable
    name: str
    #: The traced body of the hook (`tracer/handlers/inlined_hooks.py`); None if the hook must run eagerly.
    traced: Any = None


@record(eq=False)
class OpaqueResult(VariableTracker):
    """The `Work` object of an asynchronous collective, or a handle: an object that a call in the graph returns."""

    python_type = OF_CLS
    #: Makes the object when the graph runs.
    node: torch.fx.Node
    cls: type
    fake: None = None


@record(eq=False)
class ItemVariable(VariableTracker):
    """An int, float or bool that the graph reads from a tensor, or computes from such numbers: no value is known."""

    python_type = OF_CLS
    #: Computes the number in the graph.
    node: torch.fx.Node
    #: int, float or bool.
    cls: type
    #: An unbacked symbol; None until an operation on tensors takes the number.
    fake: Any = None


@record(eq=False)
class GradFnVariable(VariableTracker):
    """The autograd node `of.grad_fn` of a tensor that is the result of a computation."""

    python_type = property(lambda self: type(self.function))
    of: TensorVariable
    #: The node of the fake tensor; for an external tensor, the node of the real tensor.
    function: Any


@record(eq=False)
class ArrayVariable(VariableTracker):
    """A numpy array that was computed from constants during capture. Arrays that are external values are opaque."""

    python_type = np.ndarray
    #: The array. No other object refers to it.
    value: np.ndarray[Any, Any]
    #: The tensor over the same memory, if the program made it.
    shared: TensorVariable | None = None
