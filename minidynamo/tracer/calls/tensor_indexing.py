"""Owns subscripts of tensors: by numbers that differ from call to call, which torch itself would take as constants, and
by arrays of numpy.

A number chooses one place of a dimension, whatever stands beside it: `x[:, i]` is `x.select(1, i)`, the same view. As
in torch, items are applied from left to right, which shows in strides, and tensors among them come last. An array
stands, as in torch, for the tensor over its memory, as ints of 64 bits unless it is a mask.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import numpy as np
import torch

from minidynamo.tracer.numbers import numpy_numbers
from minidynamo.tracer.protocol import Tracer
from minidynamo.variables.arrays import ArrayVariable
from minidynamo.variables.base import VariableTracker
from minidynamo.variables.constants import ConstantVariable
from minidynamo.variables.containers import SliceVariable, TupleVariable
from minidynamo.variables.numbers import NumberVariable
from minidynamo.variables.objects import OpaqueVariable
from minidynamo.variables.tensors import TensorVariable

WHOLE = ConstantVariable(...)
_ALL = ConstantVariable(slice(None))
_MASKS = (torch.bool, torch.uint8)
_NUMBERS = (bool, int, float)


def select_numbers(
    tx: Tracer, tensor: VariableTracker, key: VariableTracker
) -> tuple[VariableTracker, VariableTracker]:
    """The part of a tensor that such numbers in `key` choose, and the key to what is left: `...` where nothing is."""
    if not isinstance(tensor, TensorVariable):
        return tensor, key
    key = _without_arrays(tx, numpy_numbers.plain_index(tx, key))
    items = key.items if isinstance(key, TupleVariable) else [key]
    if not any(map(_is_place, items)):
        return tensor, key
    taken = _dimensions(tx, items, tx.graph.use(tensor).dim())
    if taken is None:
        return tensor, key
    part: VariableTracker = tensor
    left: list[_Left] = []
    for item, count in zip(items, taken):
        if _is_place(item):
            part, left = _applied(tx, part, left)
            part = tx.emit("select", [part, ConstantVariable(sum(shown for _, shown in left)), item])
        elif _is(item, ...):
            left += [(_ALL, 1)] * count
        else:
            left.append((item, 1 if _is(item, None) else 0 if item.python_type is int else count))
    return part, WHOLE if all(item is _ALL for item, _ in left) else TupleVariable([item for item, _ in left])


def one_bool_as_mask(
    tx: Tracer, tensor: VariableTracker, key: VariableTracker, value: VariableTracker
) -> tuple[VariableTracker, VariableTracker]:
    """Where one bool says whether a tensor is filled: the tensor and the bool with a dimension of one more, in which
    the bool is a mask. Torch reads a bool that has no dimension."""
    if not isinstance(key, TensorVariable) or not isinstance(tensor, TensorVariable):
        return tensor, key
    mask = tx.graph.use(key)
    if mask.dtype != torch.bool or mask.dim() or not _fills(tx, value):
        return tensor, key
    return tx.emit("unsqueeze", [tensor, ConstantVariable(0)]), tx.emit("unsqueeze", [key, ConstantVariable(0)])


def _fills(tx: Tracer, value: VariableTracker) -> bool:
    """Whether a value is put wherever a mask says so, and a gradient does not have to be read by the mask."""
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
    # Nobody else holds an array of constants: a copy is as good, and leaves its memory alone.
    made = tx.call(torch.tensor if isinstance(key, ArrayVariable) else torch.from_numpy, [key])
    return made if array.dtype in (np.bool_, np.uint8) else tx.emit("long", [made])


# An item that is not applied yet, and how many dimensions it leaves.
_Left = tuple[VariableTracker, int]


def _applied(tx: Tracer, tensor: VariableTracker, left: Sequence[_Left]) -> tuple[VariableTracker, list[_Left]]:
    """The tensor behind those items that are no tensors, and what stands for all of them from then on."""
    basic = [one for item, shown in left for one in ([_ALL] * shown if isinstance(item, TensorVariable) else [item])]
    if any(item is not _ALL for item in basic):
        tensor = tx.emit(operator.getitem, [tensor, TupleVariable(basic)])
    return tensor, [(item if isinstance(item, TensorVariable) else _ALL, shown) for item, shown in left if shown]


def _is_place(item: VariableTracker) -> bool:
    return isinstance(item, NumberVariable) and item.cls is int


def _is(item: VariableTracker, value: object) -> bool:
    return isinstance(item, ConstantVariable) and item.here is value


def _dimensions(tx: Tracer, items: Sequence[VariableTracker], count: int) -> list[int] | None:
    """How many of a tensor's `count` dimensions each item of a key is about; None where that is not known here."""
    taken = [None if _is(item, ...) else _taken(tx, item) for item in items]
    known = sum(number for number in taken if number is not None)
    if taken.count(None) > 1 or known > count or any(number is not None and number < 0 for number in taken):
        return None
    return [count - known if number is None else number for number in taken]


def _taken(tx: Tracer, item: VariableTracker) -> int:
    """How many dimensions an item of a key is about; -1 where it is not known."""
    if isinstance(item, TensorVariable):
        index = tx.graph.use(item)
        return 1 if index.dtype not in _MASKS else index.dim() or -1
    if isinstance(item, NumberVariable | SliceVariable):
        return 1
    if not isinstance(item, ConstantVariable):
        return -1
    return 0 if item.here is None else 1 if type(item.here) in (int, slice) else -1
