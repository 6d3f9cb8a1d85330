"""Owns subscripts of tensors by symbolic numbers, which torch would specialize, and by numpy arrays.

A number selects a position in a dimension, next to any other subscript: `x[:, i]` is `x.select(1, i)`, the same view.
As in torch, items are applied from left to right, which shows in the strides, and tensors among the items are applied
last. As in torch, an array is converted to a tensor over the same memory: int64 unless it is a mask. All other
subscripts are left to torch and not here."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np
import torch

from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.numbers import graph_numbers, numpy_numbers
from minidynamo.variables.base import ConstantVariable, NumberVariable, VariableTracker
from minidynamo.variables.containers import ListVariable, SliceVariable, TupleVariable
from minidynamo.variables.objects import OpaqueVariable
from minidynamo.variables.tensors import ArrayVariable, TensorVariable

WHOLE = ConstantVariable(...)
_ALL = ConstantVariable(slice(None))
_MASKS = (torch.bool, torch.uint8)
_NUMBERS = (bool, int, float)


def select_numbers(
    tx: Tracer, tensor: VariableTracker, key: VariableTracker
) -> tuple[VariableTracker, VariableTracker]:
    """Applies the symbolic numbers in `key`; returns the selected part and the remaining key (`...` if empty)."""
    if not isinstance(tensor, TensorVariable):
        return tensor, key
    key = _without_arrays(tx, numpy_numbers.python_index(tx, key))
    items = key.items if isinstance(key, TupleVariable) else [key]
    if not any(map(_is_symbolic_index, items)):
        return tensor, key
    dim_counts = _dimensions(tx, items, tx.graph.use(tensor).dim())
    if dim_counts is None:
        return tensor, key
    part: VariableTracker = tensor
    pending: list[_Pending] = []
    for item, count in zip(items, dim_counts):
        if _is_symbolic_index(item):
            part, pending = _apply_basic(tx, part, pending)
            part = tx.emit("select", [part, ConstantVariable(sum(kept_dims for _, kept_dims in pending)), item])
        elif _is(item, ...):
            pending += [(_ALL, 1)] * count
        else:
            pending.append((item, 1 if _is(item, None) else 0 if item.python_type is int else count))
    return part, WHOLE if all(item is _ALL for item, _ in pending) else TupleVariable([item for item, _ in pending])


def refuse_unknown_lengths(tx: Tracer, key: VariableTracker) -> None:
    """Breaks the graph before an assignment to a slice whose bounds the graph reads from a tensor, unless these can be
    read before the graph."""
    items = key.items if isinstance(key, TupleVariable) else [key]
    if any(isinstance(item, SliceVariable) and graph_numbers.involves_item(item) for item in items):
        graph_numbers.break_on_value(tx, "setitem()", [key])


def index_by_tensors(tx: Tracer, tensor: TensorVariable, key: VariableTracker) -> VariableTracker | None:
    """Returns `tensor[key]` as an index operation, if the key consists of tensors and ints; else None."""
    items = key.items if isinstance(key, TupleVariable | ListVariable) else [key]
    if not all(isinstance(item, TensorVariable) or item.python_type in (int, bool) for item in items):
        return None
    options = {"dtype": ConstantVariable(torch.int64), "device": tx.getattr(tensor, "device")}
    indices = [item if isinstance(item, TensorVariable) else tx.call(torch.tensor, [item], options) for item in items]
    return tx.call(torch.ops.aten.index.Tensor, [tensor, ListVariable(indices)])


def scalar_bool_as_mask(
    tx: Tracer, tensor: VariableTracker, key: VariableTracker, value: VariableTracker
) -> tuple[VariableTracker, VariableTracker]:
    """Adds a dimension of size 1 to the tensor and the bool if a single bool decides whether the tensor is filled.

    With that dimension the bool is a mask. Torch reads the value of a bool without dimensions."""
    if not isinstance(key, TensorVariable) or not isinstance(tensor, TensorVariable):
        return tensor, key
    mask = tx.graph.use(key)
    if mask.dtype != torch.bool or mask.dim() or not _fills(tx, value):
        return tensor, key
    return tx.emit("unsqueeze", [tensor, ConstantVariable(0)]), tx.emit("unsqueeze", [key, ConstantVariable(0)])


def _fills(tx: Tracer, value: VariableTracker) -> bool:
    """Returns whether a value is written wherever a mask is true, without a gradient through the mask."""
    if isinstance(value, TensorVariable):
        fake = tx.graph.use(value)
        return not fake.dim() and not fake.requires_grad
    return value.python_type in _NUMBERS


def _without_arrays(tx: Tracer, key: VariableTracker) -> VariableTracker:
    if isinstance(key, TupleVariable):
        items = [_without_arrays(tx, item) for item in key.items]
        return key if all(map(operator.is_, items, key.items)) else TupleVariable(items)
    array = key.value if isinstance(key, ArrayVariable | OpaqueVariable) else None
    if type(array) is not np.ndarray or not array.ndim or array.dtype.kind not in "biu":
        return key
    # An array of constants has no other owner: a copy is as good, and leaves its memory alone.
    converted = tx.call(torch.tensor if isinstance(key, ArrayVariable) else torch.from_numpy, [key])
    return converted if array.dtype in (np.bool_, np.uint8) else tx.emit("long", [converted])


# An item that is not applied yet, and the number of dimensions that it keeps.
_Pending = tuple[VariableTracker, int]


def _apply_basic(
    tx: Tracer, tensor: VariableTracker, pending: Sequence[_Pending]
) -> tuple[VariableTracker, list[_Pending]]:
    """Applies the items that are not tensors; returns the tensor, and the items that remain to be applied."""
    basic: list[VariableTracker] = []
    for item, kept_dims in pending:
        basic += [_ALL] * kept_dims if isinstance(item, TensorVariable) else [item]
    if any(item is not _ALL for item in basic):
        tensor = tx.emit(operator.getitem, [tensor, TupleVariable(basic)])
    return tensor, [
        (item if isinstance(item, TensorVariable) else _ALL, kept_dims) for item, kept_dims in pending if kept_dims
    ]


def _is_symbolic_index(item: VariableTracker) -> bool:
    return isinstance(item, NumberVariable) and item.cls is int


def _is(item: VariableTracker, value: object) -> bool:
    return isinstance(item, ConstantVariable) and item.unguarded_value is value


def _dimensions(tx: Tracer, items: Sequence[VariableTracker], count: int) -> list[int] | None:
    """Returns, per item of a key, how many of a tensor's `count` dimensions it indexes; None if unknown."""
    dim_counts = [None if _is(item, ...) else _indexed_dimensions(tx, item) for item in items]
    known = sum(number for number in dim_counts if number is not None)
    if dim_counts.count(None) > 1 or known > count or any(number is not None and number < 0 for number in dim_counts):
        return None
    return [count - known if number is None else number for number in dim_counts]


def _indexed_dimensions(tx: Tracer, item: VariableTracker) -> int:
    """Returns how many dimensions an item of a key indexes; -1 if unknown."""
    if isinstance(item, TensorVariable):
        index = tx.graph.use(item)
        return 1 if index.dtype not in _MASKS else index.dim() or -1
    if isinstance(item, NumberVariable | SliceVariable):
        return 1
    if not isinstance(item, ConstantVariable):
        return -1
    return 0 if item.unguarded_value is None else 1 if type(item.unguarded_value) in (int, slice) else -1
