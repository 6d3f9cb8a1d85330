"""Owns the decision whether a deep copy of a tensor is a clone.

`copy.deepcopy` copies memory, and makes copies that share memory as the originals do. The copy of a tensor is a clone
if the tensor fills its memory and no other copied tensor shares the memory.
"""

from __future__ import annotations

import torch

from minidynamo.compat import memory_of, share_memory
from minidynamo.guards.source import Computed, Constant
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.records import registry
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.tensors import TensorVariable


def is_copied_by_clone(tensor: torch.Tensor) -> bool:
    """Returns whether a clone equals the deep copy: the tensor fills its memory, and has no attributes."""
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.is_quantized:
        return False
    return not (vars(tensor) or tensor.is_conj() or tensor.is_neg()) and _fills_its_memory(tensor)


def _fills_its_memory(tensor: torch.Tensor) -> bool:
    if tensor.untyped_storage().nbytes() != tensor.numel() * tensor.itemsize:
        return False
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


@registry.function(is_copied_by_clone)
def _is_copied_by_clone(tx: Tracer, tensor: VariableTracker) -> VariableTracker:
    if not isinstance(tensor, TensorVariable) or tensor.cls is not torch.Tensor:
        return ConstantVariable(False)
    if tx.graph.subgraph is not None:  # tensors under a transform have no memory to copy
        return ConstantVariable(False)
    fake, real = tx.graph.use(tensor), tx.graph.real(tensor)
    is_plain = fake.layout is torch.strided and not (fake.is_quantized or fake.is_conj() or fake.is_neg())
    if not is_plain or tx.side_effects.written_attributes(tensor) or not _fills_its_memory(fake):
        return ConstantVariable(False)
    if tensor.source is not None:
        if real is None or not is_copied_by_clone(real):
            return ConstantVariable(False)
        question = Constant(is_copied_by_clone, "is_copied_by_clone")
        tx.graph.shapes.require(Computed("{0}({1})", (question, tensor.source)), True)
    return ConstantVariable(True)


@registry.function(share_memory)
def _share_memory(tx: Tracer, one: VariableTracker, other: VariableTracker) -> VariableTracker:
    assert isinstance(one, TensorVariable) and isinstance(other, TensorVariable)
    if memory_of(tx.graph.use(one)) == memory_of(tx.graph.use(other)):
        return ConstantVariable(True)
    real, other_real = tx.graph.real(one), tx.graph.real(other)
    if real is not None and other_real is not None and one.source is not None and other.source is not None:
        if share_memory(real, other_real):
            return ConstantVariable(True)
        question = Constant(share_memory, "share_memory")
        tx.graph.shapes.require(Computed("{0}({1}, {2})", (question, one.source, other.source)), False)
    return ConstantVariable(False)
