"""Owns the layouts of tensors that autograd hands back at run time: saved values and gradients.

Graphs are compiled for sizes, strides and dtypes; what comes with others is copied. Which tensors these are is the
business of `autograd/runtime/graph_call.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from minidynamo.autograd.graph.numbers import has_symbols, is_dense_in
from minidynamo.autograd.graph.varying_strides import order_of, strides_of_ranks
from minidynamo.errors import Diagnostic, GraphRefused
from minidynamo.fake.strides import dense_strides
from minidynamo.graph.unbacked_symints import hint_of


class Layout:
    """Shape, strides, dtype and device of a tensor at one moment."""

    def __init__(self, value: torch.Tensor) -> None:
        self.shape, self.stride = value.shape, value.stride()
        self.dtype, self.device = value.dtype, value.device

    def empty(self) -> torch.Tensor:
        """A tensor like that, with any data."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)

    def restored(self, saved: torch.Tensor) -> torch.Tensor:
        """What the user's unpack hook returned for the tensor, which may have lost its dtype or strides."""
        if saved.shape != self.shape:
            came = f"returned a tensor of shape {tuple(saved.shape)} for one of shape {tuple(self.shape)}"
            raise RuntimeError(f"a hook for saved tensors {came}")
        if (saved.stride(), saved.dtype, saved.device) == (self.stride, self.dtype, self.device):
            return saved
        return self.empty().copy_(saved)


@dataclass(frozen=True)
class WrittenLayout:
    """What is needed of a tensor to lay out others like it. With symbolic sizes, `shape` and `stride` are those of the
    call that was compiled for, and `order` has the dimensions from the innermost to the outermost."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    order: tuple[int, ...] | None
    dtype: torch.dtype
    device: torch.device


def written_layout(like: torch.Tensor) -> WrittenLayout:
    """The layout of a fake tensor, without its symbols. Raises GraphRefused for a symbolic one with gaps."""
    order = _dense_order(like) if has_symbols(like) else None
    # Layout only: recorded for messages and for the order of dimensions where sizes vary.
    shape, stride = tuple(map(hint_of, like.shape)), tuple(map(hint_of, like.stride()))
    return WrittenLayout(shape, stride, order, like.dtype, like.device)


class GradientLayout:
    """Turns the gradient that autograd hands in for one result into what the backward graph was compiled for.

    `like` is a fake tensor like that, or what was written down of one. When it has symbolic sizes, its strides follow
    from those of each call.
    """

    def __init__(self, like: torch.Tensor | WrittenLayout) -> None:
        written = like if isinstance(like, WrittenLayout) else written_layout(like)
        self.is_symbolic = written.order is not None
        self.order = written.order or ()
        self.shape, self.stride = written.shape, written.stride
        self.dtype, self.device = written.dtype, written.device
        self.kind = torch.strided if isinstance(like, WrittenLayout) else like.layout  # only strided ones are written

    def of_this_kind(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """The gradient, dense if the graph was traced with a dense one, else sparse."""
        if gradient is None or gradient.layout is self.kind:
            return gradient
        return gradient.to_dense() if self.kind is torch.strided else gradient.to_sparse(layout=self.kind)

    def __call__(
        self, gradient: torch.Tensor | None, shape: Sequence[int] | None, stride: tuple[int, ...] | None = None
    ) -> torch.Tensor:
        """The gradient in the layout, or with other strides if `stride` has some; zeros for a result that was not used.
        `shape` is that of this call, if sizes are symbolic."""
        if shape is None:
            shape, stride = self.shape, stride or self.stride
        else:
            stride = dense_strides(self.order, shape) if stride is None else strides_of_ranks(stride, shape)
        if self.kind is not torch.strided:
            return self.nothing(shape) if gradient is None else gradient
        if gradient is None:
            return torch.empty_strided(shape, stride, dtype=self.dtype, device=self.device).zero_()
        if gradient.stride() == stride and not _is_lazy(gradient):
            return gradient
        return torch.empty_strided(shape, stride, dtype=self.dtype, device=self.device).copy_(gradient)

    def own_strides(self, gradient: torch.Tensor, with_gaps: bool) -> tuple[int, ...] | None:
        """The strides in which backward takes a gradient, if they are others than those that it was traced with: its
        own `with_gaps`, and where elements repeat, as those of what is summed do; else those of its order."""
        if self.kind is not torch.strided or gradient.stride() == self.stride:
            return None
        as_it_is = with_gaps or 0 in gradient.stride()
        return self.own_gaps(gradient) if as_it_is else self.own_order(gradient)

    def own_order(self, gradient: torch.Tensor) -> tuple[int, ...] | None:
        """The strides, without gaps, of a gradient whose dimensions come in another order in memory; None if it fits
        but for gaps, or its order cannot be told. Where sizes vary these are ranks."""
        shape = gradient.shape
        inner = sorted((stride, dim) for dim, stride in enumerate(gradient.stride()) if shape[dim] > 1)
        strides, reached, step = list(self.stride), 1, 1
        for stride, dim in inner:
            if stride < reached:
                return None
            strides[dim], reached, step = step, stride * shape[dim], step * shape[dim]
        if self.is_symbolic:
            found = [dim for _, dim in inner]
            return None if found == [d for d in self.order if shape[d] > 1] else self._ranks(found, gradient)
        return None if tuple(strides) == self.stride else tuple(strides)

    def _ranks(self, inner: Sequence[int], gradient: torch.Tensor) -> tuple[int, ...]:
        """The place of each dimension from the innermost on, from 1; 0 where elements repeat. `inner` has the
        dimensions of several elements in their order; the others keep their places in the usual one."""
        following, strides = iter(inner), gradient.stride()
        order = [next(following) if gradient.shape[dim] > 1 else dim for dim in self.order]
        own = [dim for dim in order if strides[dim]]
        return tuple(own.index(dim) + 1 if strides[dim] else 0 for dim in range(len(order)))

    def own_gaps(self, gradient: torch.Tensor) -> tuple[int, ...] | None:
        """The strides of a gradient, if they are others than those that it was traced with. Where sizes vary, these
        are ranks: it is laid out without gaps in its own order, but for dimensions that repeat."""
        strides = gradient.stride()
        if _is_lazy(gradient):
            return None
        if self.is_symbolic and 0 not in strides:
            return self.own_order(gradient)
        if self.is_symbolic:
            several = [dim for dim in self.order if gradient.shape[dim] > 1]
            ranks = self._ranks(sorted(several, key=lambda dim: strides[dim]), gradient)
            return ranks if strides_of_ranks(ranks, gradient.shape) == strides else None
        alike = all(given == own or n == 1 for given, own, n in zip(strides, self.stride, gradient.shape))
        return None if alike else strides

    def nothing(self, shape: Sequence[int] | None) -> torch.Tensor:
        """Zeros of that shape in the memory of one."""
        shape = self.shape if shape is None else shape
        if self.kind is not torch.strided:
            return torch.zeros(shape, dtype=self.dtype, layout=self.kind, device=self.device)
        return torch.zeros((), dtype=self.dtype, device=self.device).expand(shape)


def _is_lazy(gradient: torch.Tensor) -> bool:
    """Whether the elements are not what lies in memory, but its negatives or conjugates."""
    return gradient.is_neg() or gradient.is_conj()


def strides_follow(like: torch.Tensor) -> bool:
    """Whether the strides of a fake tensor are known in every call: its sizes do not vary, or there are no gaps."""
    return not has_symbols(like) or is_dense_in(order_of(like), like.shape, like.stride())


def _dense_order(like: torch.Tensor) -> tuple[int, ...]:
    """The order of the dimensions of a tensor with symbolic sizes. Raises GraphRefused for one with gaps."""
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
