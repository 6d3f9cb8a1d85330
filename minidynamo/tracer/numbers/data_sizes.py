"""Owns calls that need the values of tensors: those whose result has a size that tensors hold, such as `x[mask]`, where
the size is known before the graph, and those that fill a tensor with the number in another.

`with_sizes` replaces such a call by a call that takes the size. `early_reads.py` and `tensor_items.py` read the size.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, TypeGuard

import torch

from minidynamo.tracer.frames.interpreter import Tracer
from minidynamo.tracer.numbers import early_reads, graph_numbers, tensor_items
from minidynamo.tracer.numbers.graph_numbers import Args, Kwargs
from minidynamo.tracer.records.constants import from_constant
from minidynamo.variables.base import ConstantVariable, VariableTracker
from minidynamo.variables.containers import TupleVariable
from minidynamo.variables.tensors import ItemVariable, TensorVariable


def with_sizes(tx: Tracer, target: Any, args: Args, kwargs: Kwargs) -> VariableTracker | None:
    """Returns the result of a call that needs the values of tensors, with integers that are known before the graph: in
    place of tensors that are sizes, and for the size of the result of `repeat_interleave`, `nonzero` and `x[mask]`;
    of a call that fills a tensor with the number in another. None for other calls."""
    if target in tensor_items.FILLED:
        return _filled(tx, target, args, kwargs)
    repeats = args[1] if len(args) > 1 else kwargs.get("repeats")
    if target in _REPEATS and isinstance(repeats, TensorVariable):
        return _repeated(tx, target, args, kwargs, repeats)
    masked = _masked(tx, target, args[0], args[1:], kwargs) if args and isinstance(args[0], TensorVariable) else None
    if masked is not None:
        return masked
    found = tensor_items.as_sizes(tx, args, kwargs, _size_in)
    return None if found is None else tx.emit(target, *found)


def _filled(tx: Tracer, target: Any, args: Args, kwargs: Kwargs) -> VariableTracker | None:
    """Returns the result of `full` and the like with a tensor as number: an empty tensor, filled in the graph.

    None if a conversion to the dtype of the result could overflow, which eager checks."""
    position, empty = tensor_items.FILLED[target], _EMPTY[target]
    number = args[position] if position < len(args) else kwargs.get("fill_value")
    if not isinstance(number, TensorVariable) or not kwargs.keys().isdisjoint(("out", "requires_grad")):
        return None
    fake = tx.graph.use(number)
    if fake.ndim or fake.requires_grad:
        return None
    kwargs = {name: value for name, value in kwargs.items() if name != "fill_value" and not _is_none(value)}
    if target is torch.full and "dtype" not in kwargs and not fake.dtype.is_floating_point:
        kwargs["dtype"] = from_constant(fake.dtype if fake.dtype == torch.bool else torch.int64)
    result = tx.emit(empty, [*args[:position], *args[position + 1 :]], kwargs)
    assert isinstance(result, TensorVariable)
    made = tx.graph.use(result)
    if made.device != fake.device or not _holds(made.dtype, fake.dtype):
        return None
    return tx.emit("fill_", [result, number])


def _is_none(value: VariableTracker) -> bool:
    return isinstance(value, ConstantVariable) and value.value is None


def _holds(dtype: torch.dtype, number: torch.dtype) -> bool:
    """Returns whether every number of the second dtype can be converted to the first."""
    if dtype == number or number == torch.bool:
        return True
    return dtype.itemsize > 2 and dtype.is_floating_point and torch.promote_types(dtype, number) == dtype


def _masked(tx: Tracer, target: Any, tensor: TensorVariable, rest: Args, kwargs: Kwargs) -> VariableTracker | None:
    if target in _POSITIONS and not rest:
        return _nonzero(tx, target, tensor, kwargs)
    if kwargs or len(rest) != 1:
        return None
    (key,) = rest
    if target is operator.getitem:
        return _selected(tx, tensor, key.items if isinstance(key, TupleVariable) else rest)
    has_all = _is_mask(key) and tx.graph.use(key).ndim == tx.graph.use(tensor).ndim
    return _selected(tx, tensor, rest) if target in _SELECTIONS and has_all else None


def _repeated(tx: Tracer, target: Any, args: Args, kwargs: Kwargs, repeats: TensorVariable) -> VariableTracker | None:
    size = _total(tx, repeats) if "output_size" not in kwargs else None
    if size is None:
        return None
    if tx.graph.use(repeats).numel() != 1:
        return tx.emit(target, args, {**kwargs, "output_size": size})
    # One number is for all elements.
    if len(args) > 1:
        return tx.emit(target, [args[0], size, *args[2:]], kwargs)
    return tx.emit(target, args, {**kwargs, "repeats": size})


def _nonzero(tx: Tracer, target: Any, mask: TensorVariable, kwargs: Kwargs) -> VariableTracker | None:
    as_tuple = kwargs.get("as_tuple", from_constant(target is torch.where))
    if not isinstance(as_tuple, ConstantVariable) or kwargs.keys() - {"as_tuple"}:
        return None
    columns = _positions(tx, mask)
    if columns is None:
        return None
    # The memory of the result is in the order of columns.
    copied = tx.emit("clone", [columns], {"memory_format": from_constant(torch.contiguous_format)})
    return tx.call(tuple, [tx.emit("unbind", [copied])]) if as_tuple.value else tx.emit("t", [copied])


def _selected(tx: Tracer, tensor: TensorVariable, key: Args) -> VariableTracker | None:
    """Returns `tensor[key]` with positions in place of masks, if the number of True in each is known before the
    graph. None without masks."""
    if not any(_is_mask(item) for item in key):
        return None
    sizes, items = tx.graph.use(tensor).shape, list[VariableTracker]()
    for item, first in _dimensions(key, len(sizes)):
        if not _is_mask(item):
            items.append(item)
            continue
        shape = tx.graph.use(item).shape
        columns = _positions(tx, item) if tuple(sizes[first : first + len(shape)]) == tuple(shape) else None
        if columns is None:
            return None
        items += tx.unpack(tx.emit("unbind", [columns]))
    return tx.emit(operator.getitem, [tensor, TupleVariable(items)])


def _dimensions(key: Args, ndim: int) -> Iterator[tuple[VariableTracker, int]]:
    """Yields each item of a key with the first dimension that the item selects from."""
    counts = [_dimension_count(item) for item in key]
    first = 0
    for item, count in zip(key, counts):
        yield item, first
        first += ndim - sum(filter(None, counts)) if count is None else count


def _dimension_count(item: VariableTracker) -> int | None:
    """Returns the number of dimensions that an item of a key selects from; None for `...`."""
    if _is_mask(item):
        return item.fake.ndim
    if isinstance(item, ConstantVariable) and (item.value is None or isinstance(item.value, bool)):
        return 0
    return None if isinstance(item, ConstantVariable) and item.value is Ellipsis else 1


def _is_mask(item: VariableTracker) -> TypeGuard[TensorVariable]:
    return isinstance(item, TensorVariable) and item.fake.dtype is torch.bool


def _positions(tx: Tracer, mask: TensorVariable) -> VariableTracker | None:
    """Returns the positions of the elements other than zero, with a row per dimension; None if their number is known
    only when the graph runs."""
    if not tx.graph.use(mask).ndim:
        return None
    size = _total(tx, mask if _is_mask(mask) else tx.emit(operator.ne, [mask, from_constant(0)]))
    return None if size is None else tx.emit("t", [tx.emit(torch.nonzero_static, [mask], {"size": size})])


def _total(tx: Tracer, tensor: VariableTracker) -> VariableTracker | None:
    """Returns the sum of the integers in a tensor; None if it is known only when the graph runs."""
    total = tx.emit("sum", [tensor])
    return _size_in(tx, total) if isinstance(total, TensorVariable) else None


def _size_in(tx: Tracer, tensor: TensorVariable) -> VariableTracker | None:
    """Returns the number in a tensor; None if it is known only when the graph runs."""
    size = tensor_items.read(tx, tensor)
    if size is None and not tensor.fake.ndim:
        size = graph_numbers.read(tx, tensor, "item")
    if isinstance(size, ItemVariable):
        early_reads.request(tx, [size])
    return None if isinstance(size, ItemVariable) else size


# Functions that fill a tensor -> the function that makes it.
_EMPTY: dict[Any, Any] = {torch.full: torch.empty, torch.full_like: torch.empty_like, "new_full": "new_empty"}
_REPEATS = (torch.repeat_interleave, "repeat_interleave")
_SELECTIONS = (torch.masked_select, "masked_select")
_POSITIONS = (torch.nonzero, "nonzero", torch.argwhere, "argwhere", torch.where)
