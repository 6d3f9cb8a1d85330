"""Owns strides of tensors with symbolic sizes: which dimensions repeat elements, and the memory order of the others.

An operation is run on the sizes of the compiled call, so no condition on a symbol is decided. The order of dimensions
with several elements in a result depends on the order in the arguments, not on sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.graph.numbers import is_symbolic, key
from minidynamo.fake.strides import dense_strides
from minidynamo.graph.unbacked_symints import depends_on_data, hint_of


def order_of(like: torch.Tensor) -> tuple[int, ...]:
    """Returns the dimensions of a tensor from innermost to outermost."""
    # Order only: of dimensions in memory.
    sizes, strides = tuple(map(hint_of, like.shape)), tuple(map(hint_of, like.stride()))
    return tuple(sorted(range(like.ndim), key=lambda d: (strides[d], sizes[d], -d)))


def with_repeats(order: Sequence[int], shape: Sequence[Any], repeats: Sequence[Any]) -> tuple[Any, ...]:
    """Returns dense strides, with 0 for dimensions whose given stride is 0: their elements repeat."""
    dense = dense_strides([dim for dim in order if repeats[dim]], shape, lambda size, _: size)
    return tuple(stride if own else 0 for stride, own in zip(dense, repeats))


def strides_of_ranks(ranks: Sequence[int], shape: Sequence[Any]) -> tuple[Any, ...]:
    """Returns dense strides of dimensions ranked from 1 for the innermost; elements of dimensions with rank 0
    repeat."""
    return with_repeats(sorted(range(len(ranks)), key=lambda dim: ranks[dim]), shape, ranks)


def view_strides(value: torch.Tensor, shape: Sequence[Any]) -> tuple[Any, ...] | None:
    """Returns the strides of a tensor viewed in another shape, if it is a view for all sizes; else None.

    Matches dimensions of both shapes from right to left, as few at a time as have the same number of elements. The
    leftmost dimensions match because the shapes have the same number of elements. The dimensions of a match must all
    repeat, or be dense.
    """
    if not any(map(key, value.stride())):
        return (0,) * len(shape)
    old = [(size, stride) for size, stride in zip(value.shape, value.stride()) if key(size) != 1]
    strides: list[Any] = []
    new = [*shape]
    while new:
        if key(new[-1]) == 1 or not old:
            new.pop()
            strides.append(1)
            continue
        count, step = old.pop()
        other = 1
        while key(count) != key(other) and (old or new):
            # Layout only: how a repeated dimension is split.
            if new and hint_of(other) <= hint_of(count):
                strides.append(step * other)
                other = other * new.pop()
            elif old and key(old[-1][1]) == key(step * count):
                count = count * old.pop()[0]
            else:
                return None
    return (*reversed(strides),)


def predict_values(node: fx.Node) -> Any:
    """Returns fake values of an operation, not a view, whose arguments have symbolic sizes and new layouts; None if the
    layout of a result may differ from call to call."""
    like = node.meta["val"]
    several = isinstance(like, (tuple, list))
    operands = [source.meta["val"] for source in node.all_input_nodes]
    if not all(map(_determines_order, [*(like if several else [like]), *operands])):
        return None
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: _with_hints(source.meta["val"]))
    mode = next(value.fake_mode for value in operands if isinstance(value, torch.Tensor))  # type: ignore[attr-defined]
    with torch.no_grad(), mode:
        predicted = node.target(*args, **kwargs)  # type: ignore[operator]
    if not several:
        return _with_symbols(predicted, like)
    values = [_with_symbols(*pair) for pair in zip(predicted, like)]
    return None if any(value is None and old is not None for value, old in zip(values, like)) else tuple(values)


def _determines_order(value: Any) -> bool:
    """Returns whether the layout in this call shows the layout in all calls: varying dimensions have several
    elements."""
    if isinstance(value, (tuple, list)):
        return all(map(_determines_order, value))
    if not isinstance(value, torch.Tensor):
        return not is_symbolic(value) or _is_known(value)
    sizes, strides = [*filter(is_symbolic, value.shape)], [*filter(is_symbolic, value.stride())]
    # Layout only: whether the strides of this call tell the order of dimensions.
    return all(map(_is_known, sizes + strides)) and all(hint_of(size) > 1 for size in sizes)


def _is_known(number: Any) -> bool:
    return isinstance(number, torch.SymInt) and not depends_on_data(number)


def _with_hints(value: Any) -> Any:
    """Returns a value with the sizes of the compiled call."""
    if isinstance(value, (tuple, list)):
        return type(value)(map(_with_hints, value))
    if isinstance(value, torch.Tensor):
        # Layout only: the tensor has no data, and only its strides are read.
        shape, strides = [*map(hint_of, value.shape)], [*map(hint_of, value.stride())]
        with value.fake_mode:  # type: ignore[attr-defined]
            return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)
    return hint_of(value) if isinstance(value, torch.SymInt) else value


def _with_symbols(predicted: Any, like: Any) -> torch.Tensor | None:
    """Returns `like` in the layout of `predicted`, which has the sizes of the compiled call; None if its strides do not
    follow from sizes."""
    if not isinstance(like, torch.Tensor) or not isinstance(predicted, torch.Tensor):
        return None
    if _significant(predicted, [*map(hint_of, like.stride())]) == _significant(predicted, predicted.stride()):
        return like
    strides = with_repeats(order_of(predicted), like.shape, predicted.stride())
    if _significant(predicted, [*map(hint_of, strides)]) != _significant(predicted, predicted.stride()):
        return None
    with like.fake_mode:  # type: ignore[attr-defined]
        return torch.empty_strided(like.shape, strides, dtype=like.dtype, device=like.device)


def _significant(value: torch.Tensor, strides: Sequence[int]) -> list[int]:
    """Returns the strides of dimensions with several elements."""
    return [stride for stride, size in zip(strides, value.shape) if size > 1]
