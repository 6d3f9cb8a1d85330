"""Owns the orders in which the dimensions of gradients lie in memory, where they are not those of the results.

Autograd takes gradients as they come, and what is computed of them elementwise lies as they do.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.emitter import fake
from minidynamo.autograd.locations import USERS_BACKWARD
from minidynamo.autograd.mutation import is_view
from minidynamo.autograd.numbers import has_symbols, keys
from minidynamo.autograd.opaque import Gradients
from minidynamo.compat import OpOverload
from minidynamo.numbers_in_data import hint_of
from minidynamo.strides import dense_strides

aten = torch.ops.aten

_RESHAPED = frozenset((aten.view.default, aten._unsafe_view.default))
# Views of numbers, not of dimensions: they hang on how the tensor lies.
_PARTICULAR = frozenset((aten.as_strided.default, aten.view_as_complex.default, aten.view.dtype))
# Beside operations on elements: every overload of these.
_TAKES_ANY = """
    bmm cat channel_shuffle clone constant_pad_nd cumsum diagonal_scatter elu_backward _fft_c2c _fft_c2r _fft_r2c flip
    gather hardshrink_backward hardswish_backward hardtanh_backward huber_loss_backward index_copy index_fill
    index_put index_select masked_fill mean mm mse_loss_backward native_batch_norm_backward native_channel_shuffle
    _pdist_backward pixel_shuffle pixel_unshuffle _prelu_kernel_backward put roll rot90 rrelu_with_noise_backward
    _scaled_dot_product_flash_attention_for_cpu_backward scatter scatter_add select_scatter slice_scatter
    smooth_l1_loss_backward soft_margin_loss_backward softshrink_backward sum _to_copy tril _trilinear triu
    _upsample_bilinear2d_aa_backward upsample_bilinear2d_backward upsample_nearest2d_backward
    upsample_nearest3d_backward _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward
    upsample_trilinear3d_backward
"""
# Torch's formulas make these of a gradient as it comes; a user's may have asked for another order before.
_MADE_ALIKE = "empty_like full_like ones_like zeros_like"


class NewLayouts:
    """Gives values of a graph other strides than those that it was traced for, node by node, in its order.

    What `takes_any` operation is given them computes the same, and its result gets the strides that eager gives it;
    every other operation gets a copy in the layout that it was traced for. `several`: so do operations with several
    results. `traced` has what a value with new strides was like, `copies` those in the layout of before.
    """

    def __init__(self, graph: fx.Graph, takes_any: Callable[[fx.Node], bool], *, several: bool = False) -> None:
        self.graph = graph
        self.takes_any = takes_any
        self.several = several
        self.traced: dict[fx.Node, Any] = {}
        self.copies: dict[fx.Node, fx.Node] = {}

    def set(self, node: fx.Node, made: Any) -> None:
        """`made` is the fake value of `node` from now on."""
        like, node.meta["val"] = node.meta["val"], made
        if _strides(made) != _strides(like):
            self.traced[node] = like

    def follow(self, node: fx.Node) -> None:
        """Give an operation the new strides of its arguments, or copies of them."""
        given = [source for source in node.all_input_nodes if source in self.traced]
        if not given:
            return
        if node.target is operator.getitem and isinstance(given[0].meta["val"], (tuple, list)):
            self.set(node, operator.getitem(*fake(node.args)))
            return
        like = node.meta["val"]
        varies = has_symbols([like, *(source.meta["val"] for source in given)])
        if varies and self.takes_any(node) and _lies_by_rows(node):
            return
        if self.takes_any(node) and (not varies or _only_turns(node)):
            node.target = aten.reshape.default if node.target in _RESHAPED else node.target
            with given[0].meta["val"].fake_mode, torch.no_grad():
                made = node.target(*fake(node.args), **fake(node.kwargs))  # type: ignore[operator]
            if isinstance(made, torch.Tensor) or self.several:
                self.set(node, made)
                return
            if _strides(made) == _strides(like):
                return
        for source in given:
            node.replace_input_with(source, self.restored(node, source))

    def restored(self, node: fx.Node, source: Any) -> Any:
        """`source` in the layout that it was traced for, which `node` is given."""
        if source in self.traced and source not in self.copies:
            with self.graph.inserting_before(node):
                self.copies[source] = laid_out(self.graph, source, self.traced[source])
        return self.copies.get(source, source)


# Beside pointwise operations: they lay out their results row by row, whatever they are given.
_BY_ROWS = frozenset((aten.mm.default, aten.bmm.default, aten.sum.dim_IntList, aten.sum.default))


def _lies_by_rows(node: fx.Node) -> bool:
    """Whether eager lays out the result of an operation row by row, as it was traced: a product always, an operation on
    elements where its arguments lie so but for what repeats. Where sizes vary nothing else is known: fake tensors might
    decide something about the sizes."""
    op, value = node.target, node.meta["val"]
    if not isinstance(op, OpOverload) or not isinstance(value, torch.Tensor) or not _lies(value, ()):
        return False
    given = [source.meta["val"] for source in node.all_input_nodes]
    tensors = [tensor for tensor in given if isinstance(tensor, torch.Tensor)]
    return op in _BY_ROWS or (torch.Tag.pointwise in op.tags and all(_lies(tensor, (0,)) for tensor in tensors))


def _lies(tensor: torch.Tensor, others: Collection[int]) -> bool:
    """Whether a tensor lies row by row, or has one of the `others` as stride in some dimensions."""
    by_rows = dense_strides(range(tensor.ndim)[::-1], tensor.shape, lambda size, _: size)
    return all(found == row or found in others for row, found in zip(keys(by_rows), keys(tensor.stride())))


def _only_turns(node: fx.Node) -> bool:
    """Whether an operation is a view of which the sizes alone are asked, whatever the strides."""
    return is_view(node.target) and node.target not in _RESHAPED


def lay_out_anew(graph: fx.Graph, tangents: Mapping[fx.Node, Sequence[int]]) -> None:
    """Let a backward graph take some of its gradients in other strides.

    The values computed of them get the strides that eager gives them. An operation that may count on the layout which
    it was traced for, since its formula has seen to it, gets a copy in that layout; so do most where sizes vary.
    """
    layouts = NewLayouts(graph, takes_any_layout)
    for tangent, strides in tangents.items():
        layouts.traced[tangent] = like = tangent.meta["val"]
        tangent.meta["val"] = empty_as(like, range(like.ndim), strides)
    for node in graph.nodes if tangents else ():
        # What the user's formulas give lies as they have promised, whatever they are given.
        if node.op == "call_function" and not isinstance(node.target, Gradients):
            layouts.follow(node)


def handed_on(graph: fx.Graph, tangents: Sequence[fx.Node]) -> tuple[int, ...]:
    """The positions of the gradients that a backward graph returns as they come, or views of them: as in eager, what it
    returns then has the gaps that they have."""
    places = {tangent: place for place, tangent in enumerate(tangents)}
    for node in graph.nodes:
        if node.op == "call_function" and takes_any_layout(node) and is_view(node.target):
            place = places.get(node.args[0])
            if place is not None:
                places[node] = place
    (output,) = graph.find_nodes(op="output")
    return tuple(sorted({places[node] for node in output.all_input_nodes if node in places}))


def _strides(made: Any) -> list[Any]:
    values = made if isinstance(made, (tuple, list)) else (made,)
    return [keys(value.stride()) if isinstance(value, torch.Tensor) else None for value in values]


def takes_any_layout(node: fx.Node) -> bool:
    """Whether an operation computes the same of tensors that lie in any order."""
    op = node.target
    if not isinstance(op, OpOverload) or op.namespace != "aten":
        return False
    name = op.overloadpacket.__name__
    named = name in _TAKES_ANY.split() or op in _RESHAPED
    alike = name in _MADE_ALIKE.split() and USERS_BACKWARD not in node.meta
    return named or alike or torch.Tag.pointwise in op.tags or (is_view(op) and op not in _PARTICULAR)


def laid_out(graph: fx.Graph, source: fx.Node, like: torch.Tensor) -> fx.Node:
    """A copy of `source` in the layout of `like`, a fake tensor of its shape."""
    inner = sorted(range(like.ndim), key=lambda dim: (hint_of(like.stride(dim)), hint_of(like.shape[dim]), -dim))
    stride = like.stride() if has_symbols(like) else dense_strides(inner, like.shape)
    outer = inner[::-1]
    contiguous: dict[str, Any] = {"memory_format": torch.contiguous_format}
    if outer == [*range(like.ndim)]:
        copy = graph.call_function(aten.clone.default, (source,), contiguous)
        copy.meta["val"] = empty_as(like, outer, stride)
        return copy
    back = graph.call_function(aten.permute.default, (source, [outer.index(dim) for dim in range(like.ndim)]))
    with graph.inserting_before(back):
        permuted = graph.call_function(aten.permute.default, (source, outer))
        copy = graph.call_function(aten.clone.default, (permuted,), contiguous)
    back.replace_input_with(source, copy)
    permuted.meta["val"] = empty_as(like, outer, source.meta["val"].stride())
    copy.meta["val"], back.meta["val"] = empty_as(like, outer, stride), empty_as(like, range(like.ndim), stride)
    return back


def empty_as(like: Any, order: Sequence[int], stride: Sequence[Any]) -> torch.Tensor:
    """A fake tensor with the dimensions of `like` in another order; `stride` is by the old one."""
    with like.fake_mode:
        sizes, strides = [like.shape[dim] for dim in order], [stride[dim] for dim in order]
        return torch.empty_strided(sizes, strides, dtype=like.dtype, device=like.device)
