"""Owns a tensor's behaviour as a Python object: its length, loops over its first dimension, and deep copies.

Operators, attributes and methods of tensors are in the tracer.
"""

from __future__ import annotations

import operator

import torch

from minidynamo.compat import memory_of, share_memory
from minidynamo.guards.source import Computed, Constant
from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.frames.unrolling import limit_trip_counts, size_here
from minidynamo.tracer.numbers.arithmetic import involves_number
from minidynamo.tracer.records import registry
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import SequenceVariable, Slots
from minidynamo.variables.iterators import SequenceIterator
from minidynamo.variables.tensors import TensorVariable


@registry.method(torch.Tensor, "__len__")
def _len(tx: Tracer, self: TensorVariable) -> VariableTracker:
    if not self.fake.shape:
        tx.graph.use(self)
        tx.raises(TypeError("len() of a 0-d tensor"), exact=True)
    return tx.graph.size(self, 0)


@registry.method(torch.Tensor, "__iter__")
def _iter(tx: Tracer, self: TensorVariable) -> VariableTracker:
    shape = tx.graph.use(self).shape
    if not shape:
        tx.raises(TypeError("iteration over a 0-d tensor"), exact=True)
    limit_trip_counts(tx, size_here(shape[0]), "a loop over a tensor", varies=isinstance(shape[0], torch.SymInt))
    return SequenceIterator(Slots(tx.unpack(tx.emit("unbind", [self, ConstantVariable(0)]))), cls=type(iter(())))


@registry.method(torch.Tensor, "__getitem__")
def _getitem(tx: Tracer, self: TensorVariable, key: VariableTracker) -> VariableTracker:
    return tx.call(operator.getitem, [self, key])


@registry.method(torch.Tensor, "__setitem__")
def _setitem(tx: Tracer, self: TensorVariable, key: VariableTracker, value: VariableTracker) -> VariableTracker:
    return tx.call(operator.setitem, [self, key, value])


@registry.method(torch.Tensor, "new")
def _new(tx: Tracer, self: TensorVariable, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    """Emits `new`: a `torch.Size` is the size of the result, any other tuple its contents. A graph has one kind of
    tuple."""
    cls = args[0].cls if len(args) == 1 and not kwargs and isinstance(args[0], SequenceVariable) else None
    if cls in (list, tuple) and involves_number(args[0]) and tx.graph.use(self).layout is torch.strided:
        return _new_tensor(tx, self, *args)
    return tx.emit("new_empty" if cls is torch.Size else "new", [self, *args], kwargs)


@registry.method(torch.Tensor, "new_tensor")
def _new_tensor(tx: Tracer, self: TensorVariable, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker:
    """Emits `torch.tensor`, with the dtype and device of this tensor, if the data has symbolic numbers."""
    if len(args) != 1 or not involves_number(args[0]) or not kwargs.keys() <= {"dtype", "device"}:
        return tx.emit("new_tensor", [self, *args], kwargs)
    for name in ("dtype", "device"):
        option = kwargs.get(name)
        if option is None or (isinstance(option, ConstantVariable) and option.value is None):
            kwargs[name] = tx.getattr(self, name)
    return tx.call(torch.tensor, args, kwargs)


@registry.method(torch.Tensor, "__reversed__")
def _reversed(tx: Tracer, self: TensorVariable) -> VariableTracker:
    # torch returns a flipped tensor, not an iterator.
    if not tx.graph.use(self).shape:
        return self
    return tx.emit("flip", [self, ConstantVariable(0)])


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
