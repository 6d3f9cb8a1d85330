"""Owns the strides of gradients where the strides differ from those of the results.

Autograd passes gradients in any layout, and elementwise results take over the layout of their arguments.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.graph.graph_builder import fake
from minidynamo.autograd.graph.mutation import is_view
from minidynamo.autograd.graph.numbers import has_symbols, key, keys
from minidynamo.autograd.graph.varying_strides import order_of, predict_values, strides_of_ranks, view_strides
from minidynamo.autograd.trace.fallback_op import Gradients
from minidynamo.compat import OpOverload
from minidynamo.fake.strides import dense_strides
from minidynamo.graph.marks import USERS_BACKWARD
from minidynamo.graph.pytree import as_sequence

aten = torch.ops.aten

_VIEWS_TO_SHAPE = frozenset((aten.view.default, aten._unsafe_view.default))
# Views whose elements depend on the strides of the argument.
_DEPEND_ON_STRIDES = frozenset((aten.as_strided.default, aten.view_as_complex.default, aten.view.dtype))
# All overloads of these operators accept any layout, and so do pointwise operators.
_LAYOUT_NAMES = """
    _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward avg_pool2d_backward avg_pool3d_backward
    binary_cross_entropy_backward bmm cat channel_shuffle clone col2im constant_pad_nd cumsum diagonal_backward
    diagonal_scatter elu_backward embedding_dense_backward _fft_c2c _fft_c2r _fft_r2c flip gather glu_backward
    grid_sampler_2d_backward grid_sampler_3d_backward hardshrink_backward hardsigmoid_backward hardswish_backward
    hardtanh_backward huber_loss_backward im2col index index_add index_copy index_fill index_put index_select
    leaky_relu_backward linalg_cross log_sigmoid_backward _log_softmax_backward_data masked_fill masked_scatter_backward
    mean mish_backward mm mse_loss_backward multi_margin_loss_backward multilabel_margin_loss_backward mv
    native_batch_norm_backward native_channel_shuffle new_empty new_full new_ones new_zeros nll_loss_backward
    pixel_shuffle pixel_unshuffle _prelu_kernel_backward put reflection_pad1d_backward reflection_pad2d_backward
    reflection_pad3d_backward replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward roll
    rot90 rrelu_with_noise_backward scatter scatter_add _segment_reduce_backward select_backward select_scatter
    slice_backward slice_scatter smooth_l1_loss_backward soft_margin_loss_backward _softmax_backward_data
    softplus_backward softshrink_backward sum take _to_copy tril _trilinear triu unfold_backward _unsafe_index_put
    _upsample_bicubic2d_aa_backward upsample_bicubic2d_backward _upsample_bilinear2d_aa_backward
    upsample_bilinear2d_backward upsample_linear1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
    _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward upsample_trilinear3d_backward
"""
TAKE_ANY_LAYOUT = frozenset(_LAYOUT_NAMES.split())
# These operators accept any layout only for the gradient, their first argument; other arguments are row-major.
_GRADIENT_NAMES = """
    _embedding_bag_backward fractional_max_pool2d_backward native_layer_norm_backward nll_loss2d_backward
    _pdist_backward _scaled_dot_product_flash_attention_for_cpu_backward
"""
TAKE_ANY_GRADIENT = frozenset(_GRADIENT_NAMES.split())
# In torch's formulas these operators accept any layout; the user's formulas may rely on the layout of the result.
_LIKE_NAMES = ("empty_like", "full_like", "ones_like", "zeros_like")


class NewLayouts:
    """Changes the strides of values in a traced graph, node by node, in graph order.

    If `takes_any` is true for an operation, the operation accepts the new strides, and its result gets eager's strides
    for them. Every other operation gets a copy in the traced layout. With `several`, operations with several results
    may accept new strides as well. Without `shares`, each operation that reads data gets a copy of its own, which is
    freed afterwards; only copies for views are shared.
    """

    def __init__(
        self, graph: fx.Graph, takes_any: Callable[[fx.Node], bool], *, several: bool = False, shares: bool = True
    ) -> None:
        self.graph = graph
        self.takes_any = takes_any
        self.several = several
        self.shares = shares
        #: Value with new strides -> its traced fake value.
        self.traced: dict[fx.Node, Any] = {}
        #: Value with new strides -> its copy in the traced layout.
        self.copies: dict[fx.Node, fx.Node] = {}

    def set(self, node: fx.Node, value: Any) -> None:
        """Sets the fake value of `node`."""
        like, node.meta["val"] = node.meta["val"], value
        if _strides(value) != _strides(like):
            self.traced[node] = like

    def propagate(self, node: fx.Node) -> None:
        """Gives an operation its arguments with new strides, or copies in the traced layout."""
        changed = [source for source in node.all_input_nodes if source in self.traced]
        if not changed:
            return
        if node.target is operator.getitem and isinstance(changed[0].meta["val"], (tuple, list)):
            self.set(node, operator.getitem(*fake(node.args)))
            return
        like = node.meta["val"]
        if self.takes_any(node):
            result = _result_of(node, [like, *(source.meta["val"] for source in changed)])
            if isinstance(result, torch.Tensor) or (self.several and result is not None):
                node.target = aten.reshape.default if node.target in _VIEWS_TO_SHAPE else node.target
                self.set(node, result)
                return
            if result is not None and _strides(result) == _strides(like):
                return
        for source in changed:
            node.replace_input_with(source, self.restored(node, source))

    def restored(self, node: fx.Node, source: Any) -> Any:
        """Returns `source` in the traced layout, as an argument of `node`."""
        if source not in self.traced or source in self.copies:
            return self.copies.get(source, source)
        with self.graph.inserting_before(node):
            copy = laid_out(self.graph, source, self.traced[source])
        if self.shares or (isinstance(node.target, OpOverload) and is_view(node.target)):
            self.copies[source] = copy
        return copy


def _result_of(node: fx.Node, values: Sequence[Any]) -> Any:
    """Returns the fake result of an operation for the present strides of its arguments; None if the strides of the
    result vary from call to call."""
    like, reshaped = node.meta["val"], node.target in _VIEWS_TO_SHAPE
    if has_symbols([*values]) and reshaped:
        # Sizes are compared by their symbols, so a reshape that is a view for some sizes only is not treated as a view.
        shape = [size if key(wanted) == -1 else wanted for wanted, size in zip(fake(node.args[1]), like.shape)]
        strides = view_strides(fake(node.args[0]), shape)
        return None if strides is None else empty_as(like, range(like.ndim), strides)
    if has_symbols([*values]) and not is_view(node.target):
        return predict_values(node)
    target = aten.reshape.default if reshaped else node.target
    with torch.no_grad(), values[-1].fake_mode:
        return target(*fake(node.args), **fake(node.kwargs))  # type: ignore[operator]


def restride_tangents(graph: fx.Graph, tangents: Mapping[fx.Node, Sequence[int]]) -> None:
    """Lets a backward graph take some of its tangents in other strides.

    Values that depend on the tangents get the strides of eager. An operation that needs the traced layout gets a copy;
    with symbolic sizes most operations do.
    """
    # `shares=False`: torch's kernels also make a contiguous copy each.
    layouts = NewLayouts(
        graph, lambda node: takes_any_layout(node) or _takes_any_gradient(node, layouts.traced), shares=False
    )
    for tangent, strides in tangents.items():
        layouts.traced[tangent] = like = tangent.meta["val"]
        new_strides = strides_of_ranks(strides, like.shape) if has_symbols(like) else strides
        tangent.meta["val"] = empty_as(like, range(like.ndim), new_strides)
    for node in graph.nodes if tangents else ():
        # Results of the user's formulas keep the traced layout for every layout of the gradients.
        if node.op == "call_function" and not isinstance(node.target, Gradients):
            layouts.propagate(node)


def aliased_tangents(graph: fx.Graph, tangents: Sequence[fx.Node]) -> tuple[int, ...]:
    """Returns the positions of the tangents that a backward graph returns unchanged or as views.

    As in eager, such a gradient has the gaps of its tangent.
    """
    positions = {tangent: position for position, tangent in enumerate(tangents)}
    for node in graph.nodes:
        if node.op == "call_function" and takes_any_layout(node) and is_view(node.target):
            position = positions.get(node.args[0])
            if position is not None:
                positions[node] = position
    (output,) = graph.find_nodes(op="output")
    return tuple(sorted({positions[node] for node in output.all_input_nodes if node in positions}))


def _strides(result: Any) -> list[Any]:
    return [keys(value.stride()) if isinstance(value, torch.Tensor) else None for value in as_sequence(result)]


def takes_any_layout(node: fx.Node) -> bool:
    """Returns whether an operation computes the same values for tensors in any layout."""
    op = node.target
    if not isinstance(op, OpOverload) or op.namespace != "aten":
        return False
    name = op.overloadpacket.__name__
    is_listed = name in TAKE_ANY_LAYOUT or op in _VIEWS_TO_SHAPE
    creates_like = name in _LIKE_NAMES and USERS_BACKWARD not in node.meta
    return is_listed or creates_like or torch.Tag.pointwise in op.tags or (is_view(op) and _ignores_strides(node))


def _ignores_strides(node: fx.Node) -> bool:
    """Returns whether a view has the same elements for all strides of its argument."""
    args: Any = node.args
    is_first_element = node.target is aten.as_strided.default and len(args) == 3 and not any(map(key, fake(args[2])))
    return node.target not in _DEPEND_ON_STRIDES or is_first_element


def _takes_any_gradient(node: fx.Node, changed: Collection[fx.Node]) -> bool:
    """Returns whether an operation computes the same values for gradients in any layout, and no other argument is
    `changed`."""
    op = node.target
    if not isinstance(op, OpOverload) or op.overloadpacket.__name__ not in TAKE_ANY_GRADIENT:
        return False
    return op.namespace == "aten" and not any(arg in changed for arg in node.args[1:] if isinstance(arg, fx.Node))


def laid_out(graph: fx.Graph, source: fx.Node, like: torch.Tensor) -> fx.Node:
    """Returns a copy of `source` in the layout of `like`, a fake tensor of the same shape."""
    from_innermost = [*order_of(like)]
    stride = like.stride() if has_symbols(like) else dense_strides(from_innermost, like.shape)
    from_outermost = from_innermost[::-1]
    contiguous: dict[str, Any] = {"memory_format": torch.contiguous_format}
    if from_outermost == [*range(like.ndim)]:
        copy = graph.call_function(aten.clone.default, (source,), contiguous)
        copy.meta["val"] = empty_as(like, from_outermost, stride)
        return copy
    restored = graph.call_function(
        aten.permute.default, (source, [from_outermost.index(dim) for dim in range(like.ndim)])
    )
    with graph.inserting_before(restored):
        permuted = graph.call_function(aten.permute.default, (source, from_outermost))
        copy = graph.call_function(aten.clone.default, (permuted,), contiguous)
    restored.replace_input_with(source, copy)
    permuted.meta["val"] = empty_as(like, from_outermost, source.meta["val"].stride())
    copy.meta["val"], restored.meta["val"] = (
        empty_as(like, from_outermost, stride),
        empty_as(like, range(like.ndim), stride),
    )
    return restored


def empty_as(like: Any, order: Sequence[int], stride: Sequence[Any]) -> torch.Tensor:
    """Returns a fake tensor with the dimensions of `like` in another order; `stride` is indexed by the old order."""
    with like.fake_mode:
        sizes, strides = [like.shape[dim] for dim in order], [stride[dim] for dim in order]
        return torch.empty_strided(sizes, strides, dtype=like.dtype, device=like.device)
