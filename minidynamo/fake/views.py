"""Owns the sizes and strides of views with symbolic sizes: a view has exactly the requested sizes.

For `[n // 2, 2]`, torch's Python rule returns the sizes `[n // 2, n // (n // 2)]`. Sizes computed from these become
long, and torch decides slowly about long expressions. Views that are not evident here are left to torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from minidynamo import compat
from minidynamo.compat import OpOverload
from minidynamo.graph.unbacked_symints import depends_on_data, hint_of


def view(op: OpOverload, x: Tensor, shape: Sequence[Any]) -> Any:
    """Returns a view of the requested shape; NotImplemented for empty tensors, scalars and calls that raise."""
    if not x.dim() or not shape or not all(size != 0 for size in x.shape):
        return NotImplemented
    sizes = inferred_shape(x, shape)
    strides = None if sizes is None else view_strides(x.shape, x.stride(), sizes)
    return NotImplemented if sizes is None or strides is None else x.as_strided(sizes, strides)


def reshape(x: Tensor, shape: Sequence[Any]) -> Tensor:
    """Runs torch's reshape with the inferred size, if one is to be inferred."""
    sizes = inferred_shape(x, shape)
    run = compat.composite_function(torch.ops.aten.reshape.default)
    reshaped: Tensor = run(x, shape if sizes is None else sizes)
    return reshaped


compat.add_rule(torch.ops.aten.reshape.default, reshape)


def inferred_shape(x: Tensor, shape: Sequence[Any]) -> list[Any] | None:
    """Returns `shape` with a size in place of -1; None for unbacked sizes, and if eager raises an error."""
    inferred = [k for k, size in enumerate(shape) if type(size) is int and size == -1]
    known = [size for k, size in enumerate(shape) if k not in inferred[:1]]
    if any(map(depends_on_data, (*x.shape, *known))) or any(hint_of(size) < 1 for size in known):
        return None
    if not inferred:
        return [*shape]
    rest, others = [*x.shape], []
    for size in known:
        same = next((k for k, other in enumerate(rest) if compat.are_same(size, other)), None)
        if same is None:
            others.append(size)
        else:
            del rest[same]
    split = next((k for k, size in enumerate(rest) if others and _is_split(size, others)), None)
    if split is not None:
        del rest[split]
        others = []
    numel, divisor = math.prod(rest), math.prod(others)
    if hint_of(numel) % hint_of(divisor) or numel % divisor != 0:
        return None
    return [numel // divisor if k == inferred[0] else size for k, size in enumerate(shape)]


def view_strides(sizes: Sequence[Any], strides: Sequence[Any], shape: Sequence[Any]) -> list[Any] | None:
    """Returns the strides of a view of `shape`; None if there is no view for the values in the compiled call.

    Guards the facts that the view needs, unless they hold for all values of the symbols.
    """
    result: list[Any] = []
    for dims, view_dims in _equal_groups(sizes, shape):
        found = _strides_in_group([(sizes[k], strides[k]) for k in dims], [shape[k] for k in view_dims])
        if found is None:
            return None
        result = found + result
    return result


def _equal_groups(sizes: Sequence[Any], shape: Sequence[Any]) -> Iterator[tuple[range, range]]:
    """Yields ranges of dimensions of a tensor and of its view, from the innermost on, that have equal numbers of
    elements for all values of the symbols. The last ranges may differ.
    """
    dim, view_dim = end, view_end = len(sizes), len(shape)
    numel: Any = 1
    view_numel: Any = 1
    while dim or view_dim:
        if dim and (not view_dim or hint_of(numel) <= hint_of(view_numel)):
            dim -= 1
            numel = numel * sizes[dim]
        else:
            view_dim -= 1
            view_numel = view_numel * shape[view_dim]
        are_equal = compat.are_same(numel, view_numel) or _is_split(numel, shape[view_dim:view_end])
        if are_equal or not (dim or view_dim):
            while view_dim and _is_one(shape[view_dim - 1]):
                view_dim -= 1
            yield range(dim, end), range(view_dim, view_end)
            end, view_end, numel, view_numel = dim, view_dim, 1, 1


def _is_split(size: Any, parts: Sequence[Any]) -> bool:
    """Returns whether `parts` are a number and the quotient of `size` by the number; guards that no rest is left."""
    factor = math.prod(part for part in parts if type(part) is int)
    quotients = [part for part in parts if type(part) is not int]
    if type(size) is int or len(quotients) != 1 or factor < 2 or hint_of(size) != factor * hint_of(quotients[0]):
        return False
    return compat.are_same(quotients[0], size // factor) and bool(size == factor * quotients[0])


def _strides_in_group(dims: Sequence[tuple[Any, Any]], shape: Sequence[Any]) -> list[Any] | None:
    """Returns the strides of a view of `dims` (size and stride of each); None if there is no view."""
    strides: list[Any] = []
    left, base = len(shape), dims[-1][1] if dims else 1
    numel: Any = 1
    view_numel: Any = 1
    for k in reversed(range(len(dims))):
        numel = numel * dims[k][0]
        if k and (_is_one(dims[k - 1][0]) or _are_equal(dims[k - 1][1], numel * base)):
            continue  # the next dimension continues at the end of this one
        while left and (hint_of(view_numel) < hint_of(numel) or _is_one(shape[left - 1])):
            left -= 1
            strides.insert(0, view_numel * base)
            view_numel = view_numel * shape[left]
        if not _are_equal(view_numel, numel):
            return None
        if k:
            numel, view_numel, base = 1, 1, dims[k - 1][1]
    return strides if not left else None


def _is_one(size: Any) -> bool:
    return type(size) is int and size == 1


def _are_equal(one: Any, other: Any) -> bool:
    """Returns whether two numbers are equal in the compiled call, and guards that they are."""
    return hint_of(one) == hint_of(other) and (compat.are_same(one, other) or bool(one == other))
