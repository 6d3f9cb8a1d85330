"""Owns the lists of operators that take a tensor without reading its data.

Backward operators of pooling and padding take the input of forward only for its shape, but eager saves the whole
tensor. Here the operators get a substitute of the same shape: a view of the gradient, or of a single number. Forward
then saves nothing for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.graph.graph_builder import GraphBuilder
from minidynamo.autograd.graph.numbers import is_number
from minidynamo.autograd.trace.fallback_op import Gradients
from minidynamo.autograd.trace.number_operators import BATCH_NORM, BATCH_NORM_OF_NUMBERS
from minidynamo.graph.unbacked_symints import depends_on_data

aten = torch.ops.aten

# Operator -> position of the argument; the operator uses only its shape, dtype and device.
SHAPE_ONLY = {
    aten.max_pool2d_with_indices_backward.default: 1,
    aten.max_pool3d_with_indices_backward.default: 1,
    aten.adaptive_max_pool2d_backward.default: 1,
    aten.adaptive_max_pool3d_backward.default: 1,
    aten.avg_pool2d_backward.default: 1,
    aten.avg_pool3d_backward.default: 1,
    aten._adaptive_avg_pool2d_backward.default: 1,
    aten._adaptive_avg_pool3d_backward.default: 1,
    aten.reflection_pad1d_backward.default: 1,
    aten.reflection_pad2d_backward.default: 1,
    aten.reflection_pad3d_backward.default: 1,
    aten.replication_pad1d_backward.default: 1,
    aten.replication_pad2d_backward.default: 1,
    aten.replication_pad3d_backward.default: 1,
}

# Operators that create a tensor in the layout of the first argument.
CREATES_LIKE = frozenset(
    {
        *(aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default, aten.full_like.default),
        *(aten.rand_like.default, aten.randn_like.default, aten.randint_like.default, aten.new_empty.default),
        *(aten.new_zeros.default, aten.new_ones.default, aten.new_full.default, aten.new_empty_strided.default),
    }
)


def read_inputs(node: fx.Node) -> list[fx.Node]:
    """Returns the inputs that the results of `node` depend on.

    Numbers and layouts do not count as dependencies, except numbers that are read from tensors. The new running
    statistics of batch norm, which depend on the old ones, do not count as results.
    """
    if is_number(node):
        return node.all_input_nodes if depends_on_data(node.meta["val"]) else []
    if isinstance(node.target, Gradients):
        return [arg for i, arg in enumerate(node.args) if i not in node.target.unread and isinstance(arg, fx.Node)]
    if node.target in CREATES_LIKE:
        return [source for source in node.all_input_nodes if source is not node.args[0]]
    if node.target in (BATCH_NORM, BATCH_NORM_OF_NUMBERS) and node.args[5]:
        return [source for source in node.args[:3] if isinstance(source, fx.Node)]
    return node.all_input_nodes


def replace_unread(emitter: GraphBuilder, op: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the arguments of a call of `op` with a substitute, or None, for each tensor that the call does
    not read."""
    if op is aten.native_batch_norm_backward.default and args[7] and not _adds_dtypes(args[3:5], args[1:]):
        return (*args[:3], None, None, *args[5:])  # in training the running statistics are not read
    unread = op.unread if isinstance(op, Gradients) else {SHAPE_ONLY[op]} if op in SHAPE_ONLY else ()
    gradient = args[-1 if isinstance(op, Gradients) else 0]
    substitutes = {i: _substitute(emitter, args[i], gradient) for i in sorted(unread) if _may_be_replaced(args[i])}
    return tuple(substitutes.get(i, arg) for i, arg in enumerate(args)) if substitutes else args


def _adds_dtypes(unread: Sequence[Any], args: Sequence[Any]) -> bool:
    """Returns whether an unread argument has a dtype that no other argument has; torch may refuse the dtype
    without reading the data."""
    dtypes = {arg.meta["val"].dtype for arg in args if arg not in unread and _is_tensor(arg)}
    return any(arg.meta["val"].dtype not in dtypes for arg in unread if _is_tensor(arg))


def _is_tensor(arg: Any) -> bool:
    return isinstance(arg, fx.Node) and isinstance(arg.meta["val"], torch.Tensor)


def _may_be_replaced(node: fx.Node) -> bool:
    value = node.meta["val"]
    # The result gets the memory format of this argument, and the substitute is contiguous.
    return value.layout is torch.strided and value.is_contiguous() and value.numel() > 1


def _substitute(emitter: GraphBuilder, node: fx.Node, gradient: Any) -> fx.Node:
    like, sizes = node.meta["val"], emitter.sizes(node)
    if _can_be_viewed_as(gradient, like):
        return emitter.emit(aten.as_strided.default, gradient, sizes, [0] * like.ndim)
    number = emitter.emit(aten.full.default, [], 0, dtype=like.dtype, device=like.device)
    return emitter.emit(aten.expand.default, number, sizes)


def _can_be_viewed_as(node: Any, like: torch.Tensor) -> bool:
    """Returns whether a view of one element of `node` can replace `like`."""
    value = node.meta["val"] if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return value.dtype == like.dtype and value.device == like.device and bool(value.numel() > 0)
