"""Owns a tensor's behaviour as a Python sequence: its length, and loops over its first dimension.

Operators, attributes and methods of tensors are in the tracer.
"""

from __future__ import annotations

import operator

import torch

from minidynamo.tracer.frames.unrolling import size_here, unroll
from minidynamo.tracer.numbers.arithmetic import involves_number
from minidynamo.tracer.protocol import Tracer
from minidynamo.tracer.records import registry
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
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
    unroll(tx, size_here(shape[0]), "a loop over a tensor", varies=isinstance(shape[0], torch.SymInt))
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
        given = kwargs.get(name)
        if given is None or (isinstance(given, ConstantVariable) and given.value is None):
            kwargs[name] = tx.getattr(self, name)
    return tx.call(torch.tensor, args, kwargs)


@registry.method(torch.Tensor, "__reversed__")
def _reversed(tx: Tracer, self: TensorVariable) -> VariableTracker:
    # torch returns a flipped tensor, not an iterator.
    if not tx.graph.use(self).shape:
        return self
    return tx.emit("flip", [self, ConstantVariable(0)])
