"""Owns the forms of tensors from autograd at run time: the layouts of saved tensors and gradients, and batched
gradients.

Graphs are compiled for sizes, strides and dtypes; a tensor with different ones is copied.
`autograd/runtime/graph_call.py` applies the layouts. A batched gradient is a tensor of torch.vmap that represents
many gradients (`is_grads_batched=True`). Compiled code reads memory, so it is called once per gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo import compat
from minidynamo.autograd.graph.numbers import has_symbols, is_dense_in
from minidynamo.autograd.graph.varying_strides import order_of, strides_of_ranks
from minidynamo.core.records import record
from minidynamo.errors import Diagnostic, GraphRefused
from minidynamo.fake.strides import dense_strides
from minidynamo.graph.backward_calls import in_layout
from minidynamo.graph.unbacked_symints import hint_of

aten = torch.ops.aten


class Layout:
    """Shape, strides, dtype and device of a tensor at one moment."""

    def __init__(self, value: torch.Tensor) -> None:
        self.shape, self.stride = value.shape, value.stride()
        self.dtype, self.device = value.dtype, value.device

    def empty(self) -> torch.Tensor:
        """Returns an uninitialized tensor with this layout."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)

    def restored(self, saved: torch.Tensor) -> torch.Tensor:
        """Returns the result of the user's unpack hook in this layout: the hook may have changed dtype or strides."""
        if saved.shape != self.shape:
            mismatch = f"returned a tensor of shape {tuple(saved.shape)} for a tensor of shape {tuple(self.shape)}"
            raise RuntimeError(f"a hook for saved tensors {mismatch}")
        if (saved.stride(), saved.dtype, saved.device) == (self.stride, self.dtype, self.device):
            return saved
        return self.empty().copy_(saved)


@record(frozen=True)
class WrittenLayout:
    """A layout that can be written to a file."""

    #: Sizes; symbolic sizes have their value in the compiled call.
    shape: tuple[int, ...]
    #: Strides, in elements; with symbolic sizes those of the compiled call.
    stride: tuple[int, ...]
    #: With symbolic sizes: dimensions from innermost to outermost, else None.
    order: tuple[int, ...] | None
    dtype: torch.dtype
    device: torch.device


def written_layout(like: torch.Tensor) -> WrittenLayout:
    """Returns the layout of a fake tensor, without its symbols. Raises GraphRefused for symbolic sizes with gaps."""
    order = _dense_order(like) if has_symbols(like) else None
    # Layout only: recorded for messages and for the order of dimensions where sizes vary.
    shape, stride = tuple(map(hint_of, like.shape)), tuple(map(hint_of, like.stride()))
    return WrittenLayout(shape, stride, order, like.dtype, like.device)


class GradientLayout:
    """Converts the gradient of one result to the layout expected by the compiled backward graph.

    `like` is a fake tensor, or a written layout. With symbolic sizes, the strides follow from the sizes of each call.
    """

    def __init__(self, like: torch.Tensor | WrittenLayout) -> None:
        written = like if isinstance(like, WrittenLayout) else written_layout(like)
        self.is_symbolic = written.order is not None
        self.order = written.order or ()
        self.shape, self.stride = written.shape, written.stride
        self.dtype, self.device = written.dtype, written.device
        #: Strided or a sparse layout; only strided layouts are written.
        self.tensor_layout = torch.strided if isinstance(like, WrittenLayout) else like.layout

    def as_traced(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Returns the gradient, converted to dense or sparse as it was in the trace."""
        if gradient is None or gradient.layout is self.tensor_layout:
            return gradient
        return (
            gradient.to_dense()
            if self.tensor_layout is torch.strided
            else gradient.to_sparse(layout=self.tensor_layout)
        )

    def __call__(
        self, gradient: torch.Tensor | None, shape: Sequence[int] | None, stride: tuple[int, ...] | None = None
    ) -> torch.Tensor:
        """Returns the gradient in this layout, or with `stride` if given; zeros for an unused result. With symbolic
        sizes, `shape` is the shape in this call."""
        if shape is None:
            shape, stride = self.shape, stride or self.stride
        else:
            stride = dense_strides(self.order, shape) if stride is None else strides_of_ranks(stride, shape)
        if self.tensor_layout is not torch.strided:
            return self.expanded_zeros(shape) if gradient is None else gradient
        if gradient is None:
            return torch.empty_strided(shape, stride, dtype=self.dtype, device=self.device).zero_()
        if _are_alike(gradient.stride(), stride, shape) and not _is_lazy(gradient):
            return gradient
        return torch.empty_strided(shape, stride, dtype=self.dtype, device=self.device).copy_(gradient)

    def is_expected(self, gradient: torch.Tensor | None, ranks: tuple[int, ...] | None) -> bool:
        """Returns whether a gradient with symbolic sizes has the traced strides, or those of the `ranks`."""
        if gradient is None or _is_lazy(gradient):
            return False
        shape = gradient.shape
        return gradient.stride() == (
            dense_strides(self.order, shape) if ranks is None else strides_of_ranks(ranks, shape)
        )

    def convert(self, node: fx.Node, gradient: torch.Tensor | None, stride: tuple[int, ...] | None) -> None:
        """Converts the input `node` of a graph for fixed sizes to this layout, or to `stride`; `gradient` is like its
        value."""
        stride = stride or self.stride
        if gradient is None:
            converted = node.graph.call_function(
                aten.zeros.default, (list(self.shape),), {"dtype": self.dtype, "device": self.device}
            )
        elif self.is_symbolic or gradient.stride() == stride:
            return
        else:
            converted = node.graph.call_function(in_layout, (node, list(stride)))
        converted.meta.update(node.meta)
        node.replace_all_uses_with(converted, delete_user_cb=lambda user: user is not converted)

    def own_strides(self, gradient: torch.Tensor, with_gaps: bool) -> tuple[int, ...] | None:
        """Returns the strides in which backward takes a gradient, if they differ from the traced strides.

        These are the gradient's strides if `with_gaps`, or if elements repeat, as in the gradient of a sum; otherwise
        dense strides in the gradient's dimension order.
        """
        if self.tensor_layout is not torch.strided or gradient.stride() == self.stride:
            return None
        keeps_strides = with_gaps or 0 in gradient.stride()
        return self.own_gaps(gradient) if keeps_strides else self.own_order(gradient)

    def own_order(self, gradient: torch.Tensor) -> tuple[int, ...] | None:
        """Returns dense strides in the dimension order of a gradient, or ranks with symbolic sizes. Returns None if the
        order is the traced order, or if the elements overlap."""
        shape = gradient.shape
        inner = sorted((stride, dim) for dim, stride in enumerate(gradient.stride()) if shape[dim] > 1)
        strides, reached, step = list(self.stride), 1, 1
        for stride, dim in inner:
            if stride < reached:
                return None
            strides[dim], reached, step = step, stride * shape[dim], step * shape[dim]
        if self.is_symbolic:
            order = [dim for _, dim in inner]
            return None if order == [d for d in self.order if shape[d] > 1] else self._ranks(order, gradient)
        return None if tuple(strides) == self.stride else tuple(strides)

    def _ranks(self, inner: Sequence[int], gradient: torch.Tensor) -> tuple[int, ...]:
        """Returns the rank of each dimension, from 1 for the innermost; 0 for repeated elements. `inner` are the
        dimensions with several elements, in order; the remaining dimensions keep the traced order."""
        following, strides = iter(inner), gradient.stride()
        order = [next(following) if gradient.shape[dim] > 1 else dim for dim in self.order]
        own = [dim for dim in order if strides[dim]]
        return tuple(own.index(dim) + 1 if strides[dim] else 0 for dim in range(len(order)))

    def own_gaps(self, gradient: torch.Tensor) -> tuple[int, ...] | None:
        """Returns the strides of a gradient, if they differ from the traced strides. With symbolic sizes, returns the
        ranks of the dimensions instead, without gaps."""
        strides = gradient.stride()
        if _is_lazy(gradient):
            return None
        if self.is_symbolic and 0 not in strides:
            return self.own_order(gradient)
        if self.is_symbolic:
            several = [dim for dim in self.order if gradient.shape[dim] > 1]
            ranks = self._ranks(sorted(several, key=lambda dim: strides[dim]), gradient)
            return ranks if strides_of_ranks(ranks, gradient.shape) == strides else None
        return None if _are_alike(strides, self.stride, gradient.shape) else strides

    def expanded_zeros(self, shape: Sequence[int] | None) -> torch.Tensor:
        """Returns zeros of the shape in the memory of a single element."""
        shape = self.shape if shape is None else shape
        if self.tensor_layout is not torch.strided:
            return torch.zeros(shape, dtype=self.dtype, layout=self.tensor_layout, device=self.device)
        return torch.zeros((), dtype=self.dtype, device=self.device).expand(shape)


def _are_alike(strides: Sequence[int], others: Sequence[int], shape: Sequence[int]) -> bool:
    """Returns whether strides are equal in all dimensions with several elements."""
    return strides == others or all(a == b or size == 1 for a, b, size in zip(strides, others, shape))


def _is_lazy(gradient: torch.Tensor) -> bool:
    """Returns whether the memory holds negatives or conjugates of the elements."""
    return gradient.is_neg() or gradient.is_conj()


def strides_follow(like: torch.Tensor) -> bool:
    """Returns whether the strides of a fake tensor are known in every call: the sizes are fixed, or the tensor is
    dense."""
    return not has_symbols(like) or is_dense_in(order_of(like), like.shape, like.stride())


def _dense_order(like: torch.Tensor) -> tuple[int, ...]:
    """Returns the dimension order of a tensor with symbolic sizes. Raises GraphRefused if it has gaps."""
    if not strides_follow(like):
        raise GraphRefused(
            Diagnostic(
                "MD401",
                "the graph cannot be traced for autograd: a gradient has strides that do not follow from its sizes",
                why="The sizes differ from call to call, so gradients are laid out anew in each.",
                fix="Return a contiguous tensor: `return x.contiguous()`.",
            )
        )
    return order_of(like)


Gradients = Sequence[torch.Tensor | None]


def has_batches(tangents: Gradients) -> bool:
    """Returns whether some of `tangents` are batched."""
    return any(tangent is not None and compat.is_batched(tangent) for tangent in tangents)


def one_by_one(function: Callable[[Gradients], Gradients], tangents: Gradients) -> list[torch.Tensor | None]:
    """Calls `function` once per gradient of the batches in `tangents`; returns its results as batches."""
    levels = [None if tangent is None else compat.batch_level(tangent) for tangent in tangents]
    level = max(level for level in levels if level is not None)
    batches: list[Any] = [
        compat.unbatched(tangent, level) if tangent is not None and own_level == level else tangent
        for tangent, own_level in zip(tangents, levels)
    ]
    size = next(len(batch) for batch, own_level in zip(batches, levels) if own_level == level)
    rows = []
    for i in range(size):
        row = [value[i] if own_level == level else value for value, own_level in zip(batches, levels)]
        if has_batches(row):
            rows.append(function(row))
        else:
            with compat.without_transforms():
                rows.append(function(row))
    stacked = [None if parts[0] is None else torch.stack(parts) for parts in zip(*rows)]
    return [None if value is None else compat.batched(value, level) for value in stacked]
