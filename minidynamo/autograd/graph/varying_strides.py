"""Owns what is known of strides where sizes vary: which dimensions repeat, and in which order the others lie.

An operation is asked about the sizes of the call that is being compiled for, so nothing is decided about symbols. The
order that it gives dimensions of several elements hangs on the order of its arguments, not on their sizes.
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
    """The dimensions of a tensor from the innermost to the outermost."""
    # Order only: of dimensions in memory.
    sizes, strides = tuple(map(hint_of, like.shape)), tuple(map(hint_of, like.stride()))
    return tuple(sorted(range(like.ndim), key=lambda d: (strides[d], sizes[d], -d)))


def with_repeats(order: Sequence[int], shape: Sequence[Any], repeats: Sequence[Any]) -> tuple[Any, ...]:
    """Strides without gaps, but for dimensions of which the given stride is 0: their elements repeat."""
    dense = dense_strides([dim for dim in order if repeats[dim]], shape, lambda size, _: size)
    return tuple(stride if own else 0 for stride, own in zip(dense, repeats))


def strides_of_ranks(ranks: Sequence[int], shape: Sequence[Any]) -> tuple[Any, ...]:
    """Strides without gaps, of dimensions that are ranked from the innermost on, from 1. Elements of dimensions with
    the rank 0 repeat."""
    return with_repeats(sorted(range(len(ranks)), key=lambda dim: ranks[dim]), shape, ranks)


def viewed(value: torch.Tensor, shape: Sequence[Any]) -> tuple[Any, ...] | None:
    """The strides of a tensor that is given another shape, where that is a view whatever the sizes are; else None.

    Dimensions of both shapes are matched from right to left, as few at a time as have equally many elements, of which
    those that are left at the end have. Those of one match have to repeat together, or to lie without gaps.
    """
    if not any(map(key, value.stride())):
        return (0,) * len(shape)
    old = [(size, stride) for size, stride in zip(value.shape, value.stride()) if key(size) != 1]
    made: list[Any] = []
    new = [*shape]
    while new:
        if key(new[-1]) == 1 or not old:
            new.pop()
            made.append(1)
            continue
        count, step = old.pop()
        other = 1
        while key(count) != key(other) and (old or new):
            # Layout only: how a repeated dimension is split.
            if new and hint_of(other) <= hint_of(count):
                made.append(step * other)
                other = other * new.pop()
            elif old and key(old[-1][1]) == key(step * count):
                count = count * old.pop()[0]
            else:
                return None
    return (*reversed(made),)


def foretold(node: fx.Node) -> Any:
    """What an operation, no view, makes of its arguments as they lie now, where sizes vary; None if that is not known
    in every call."""
    like = node.meta["val"]
    several = isinstance(like, (tuple, list))
    given = [source.meta["val"] for source in node.all_input_nodes]
    if not all(map(_is_telling, [*(like if several else [like]), *given])):
        return None
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda source: _now(source.meta["val"]))
    mode = next(value.fake_mode for value in given if isinstance(value, torch.Tensor))  # type: ignore[attr-defined]
    with torch.no_grad(), mode:
        made = node.target(*args, **kwargs)  # type: ignore[operator]
    if not several:
        return _varying(made, like)
    found = [_varying(one, other) for one, other in zip(made, like)]
    return None if any(one is None and other is not None for one, other in zip(found, like)) else tuple(found)


def _is_telling(value: Any) -> bool:
    """Whether what varies of a value tells the same in this call as in others: dimensions have several elements."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_telling, value))
    if not isinstance(value, torch.Tensor):
        return not is_symbolic(value) or _is_known(value)
    sizes, strides = [*filter(is_symbolic, value.shape)], [*filter(is_symbolic, value.stride())]
    # Layout only: whether the strides of this call tell the order of dimensions.
    return all(map(_is_known, sizes + strides)) and all(hint_of(size) > 1 for size in sizes)


def _is_known(number: Any) -> bool:
    return isinstance(number, torch.SymInt) and not depends_on_data(number)


def _now(value: Any) -> Any:
    """A value as it is in the call that is being compiled for."""
    if isinstance(value, (tuple, list)):
        return type(value)(map(_now, value))
    if isinstance(value, torch.Tensor):
        # Layout only: the tensor has no data, and its strides alone are looked at.
        shape, strides = [*map(hint_of, value.shape)], [*map(hint_of, value.stride())]
        with value.fake_mode:  # type: ignore[attr-defined]
            return torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)
    return hint_of(value) if isinstance(value, torch.SymInt) else value


def _varying(made: Any, like: Any) -> torch.Tensor | None:
    """`like`, a fake value, laid out as `made`, which is as it is now; None if its strides do not follow from sizes."""
    if not isinstance(like, torch.Tensor) or not isinstance(made, torch.Tensor):
        return None
    if _matter(made, [*map(hint_of, like.stride())]) == _matter(made, made.stride()):
        return like
    strides = with_repeats(order_of(made), like.shape, made.stride())
    if _matter(made, [*map(hint_of, strides)]) != _matter(made, made.stride()):
        return None
    with like.fake_mode:  # type: ignore[attr-defined]
        return torch.empty_strided(like.shape, strides, dtype=like.dtype, device=like.device)


def _matter(value: torch.Tensor, strides: Sequence[int]) -> list[int]:
    """The strides of dimensions with several elements."""
    return [stride for stride, size in zip(strides, value.shape) if size > 1]
