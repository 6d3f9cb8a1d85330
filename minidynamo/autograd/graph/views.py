"""Owns the inverse of each view operation, the new value of the viewed tensor when its view gets new data, and
questions about shared elements of views.

A rule takes a builder, the node of the viewed tensor, the node of the new data and the arguments of the view operation;
it returns the node of the new viewed tensor. A view without a rule cannot be written to. Questions about shared
elements compare layouts only; `autograd/functional/functionalize.py` handles writes without functional form.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.graph.graph_builder import GraphBuilder
from minidynamo.autograd.graph.mutation import Mutation
from minidynamo.autograd.graph.numbers import is_empty, is_symbolic, key, keys
from minidynamo.compat import OpOverload
from minidynamo.fake.strides import Dims, may_meet
from minidynamo.graph.unbacked_symints import depends_on_data

aten = torch.ops.aten
Inverse = Callable[..., fx.Node]


def _reshape_back(builder: GraphBuilder, viewed: fx.Node, new: fx.Node, *_: Any, **__: Any) -> fx.Node:
    return builder.reshape(new, viewed)


def _expand_back(builder: GraphBuilder, viewed: fx.Node, new: fx.Node, *_: Any, **__: Any) -> fx.Node:
    """Returns the new tensor under an expand. Its elements do not overlap, since writes to overlapping
    elements are refused."""
    return viewed if is_empty(new.meta["val"]) else builder.reshape(new, viewed)


def _transpose_back(builder: GraphBuilder, viewed: fx.Node, new: fx.Node, first: int, second: int) -> fx.Node:
    return builder.emit(aten.transpose.int, new, first, second)


def _t_back(builder: GraphBuilder, viewed: fx.Node, new: fx.Node) -> fx.Node:
    return builder.emit(aten.t.default, new)


def _permute_back(builder: GraphBuilder, viewed: fx.Node, new: fx.Node, dims: list[int]) -> fx.Node:
    order = [dim % len(dims) for dim in dims]
    return builder.emit(aten.permute.default, new, [order.index(dim) for dim in range(len(order))])


def _dtype_back(builder: GraphBuilder, viewed: fx.Node, new: fx.Node, dtype: torch.dtype) -> fx.Node:
    return builder.emit(aten.view.dtype, new, viewed.meta["val"].dtype)


def _scatter(op: OpOverload) -> Inverse:
    def rule(builder: GraphBuilder, viewed: fx.Node, new: fx.Node, *args: Any, **kwargs: Any) -> fx.Node:
        return builder.emit(op, viewed, new, *args, **kwargs)

    return rule


def _inverse_by(op: OpOverload) -> Inverse:
    def rule(builder: GraphBuilder, viewed: fx.Node, new: fx.Node) -> fx.Node:
        return builder.emit(op, new)

    return rule


INVERSES: dict[OpOverload, Inverse] = {
    aten.view.default: _reshape_back,
    aten._reshape_alias.default: _reshape_back,
    aten.unsqueeze.default: _reshape_back,
    aten.squeeze.default: _reshape_back,
    aten.squeeze.dim: _reshape_back,
    aten.squeeze.dims: _reshape_back,
    aten.expand.default: _expand_back,
    aten.transpose.int: _transpose_back,
    aten.t.default: _t_back,
    aten.permute.default: _permute_back,
    aten.view.dtype: _dtype_back,
    aten.select.int: _scatter(aten.select_scatter.default),
    aten.slice.Tensor: _scatter(aten.slice_scatter.default),
    aten.diagonal.default: _scatter(aten.diagonal_scatter.default),
    aten.as_strided.default: _scatter(aten.as_strided_scatter.default),
    aten.view_as_real.default: _inverse_by(aten.view_as_complex.default),
    aten.view_as_complex.default: _inverse_by(aten.view_as_real.default),
}


def _split_element(builder: GraphBuilder, index: int, size: Any, dim: int = 0) -> tuple[Any, ...]:
    start, end = (builder.number(operator.mul, size, i) for i in (index, index + 1))  # a slice ends with the tensor
    return aten.slice_scatter.default, dim, start, end


def _sizes_element(builder: GraphBuilder, index: int, sizes: list[Any], dim: int = 0) -> tuple[Any, ...]:
    start = functools.reduce(functools.partial(builder.number, operator.add), sizes[:index], 0)
    return aten.slice_scatter.default, dim, start, builder.number(operator.add, start, sizes[index])


def _unbind_element(builder: GraphBuilder, index: int, dim: int = 0) -> tuple[Any, ...]:
    return aten.select_scatter.default, dim, index


SCATTER_VIEWS: dict[Any, OpOverload] = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
    aten.diagonal_scatter.default: aten.diagonal.default,
    aten.as_strided_scatter.default: aten.as_strided.default,
}
"""Operators that write into a copy of their first argument, with the view operator of the written part."""


# Per operator that returns a list of views: the scatter operator for element `index`, with arguments.
ELEMENT_INVERSES: dict[OpOverload, Callable[..., tuple[Any, ...]]] = {
    aten.split.Tensor: _split_element,
    aten.split_with_sizes.default: _sizes_element,
    aten.unbind.int: _unbind_element,
}


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Returns whether elements are known to share memory."""
    dims = [(stride, size) for size, stride in zip(tensor.shape, tensor.stride()) if key(size) != 1]
    if any(key(stride) == 0 and size > 1 for stride, size in dims):
        return True
    if any(map(is_symbolic, (*tensor.shape, *tensor.stride()))) or not tensor.numel():
        return False
    reach = 0
    for stride, size in sorted(dims):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def is_elementwise(op: OpOverload, mutation: Mutation) -> bool:
    """Returns whether an operator reads, for each written element, only the same element of the arguments."""
    variants = (op, mutation.functional)
    tagged = any(torch.Tag.pointwise in variant.tags for variant in variants if variant is not None)
    return tagged or op is torch.ops.aten.copy_.default or op.overloadpacket.__name__.startswith("_foreach_")


def same_elements(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether two tensors over one storage have the same elements in the same order."""
    return _layout(a) == _layout(b)


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    facts = keys((tensor.storage_offset(), *tensor.shape, *tensor.stride()))
    return (tensor.dtype, tensor.is_conj(), tensor.is_neg(), *facts)


def share_elements(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether two tensors over one storage may share memory. Comparisons of symbolic sizes become guards; a
    storage offset that depends on data may have any value."""
    if not a.numel() or not b.numel():
        return False
    if any(depends_on_data(tensor.storage_offset()) for tensor in (a, b)):
        return True
    return may_meet(*_bytes_of(a), *_bytes_of(b))


def _bytes_of(tensor: torch.Tensor) -> tuple[Any, Dims]:
    """Returns the position of the first byte, and (stride, size) of each dimension in bytes; the innermost are the
    bytes of one element."""
    width = tensor.element_size()
    dims = [(stride * width, size) for size, stride in zip(tensor.shape, tensor.stride()) if size != 1 and stride != 0]
    return tensor.storage_offset() * width, [*sorted(dims, key=lambda dim: dim[0], reverse=True), (1, width)]
