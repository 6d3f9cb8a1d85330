"""Owns the orders in which the dimensions of gradients lie in memory, where they are not those of the results.

Autograd takes gradients as they come, and what is computed of them elementwise lies as they do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.emitter import fake
from minidynamo.autograd.mutation import is_view
from minidynamo.autograd.numbers import dense_strides, has_symbols, hint, keys
from minidynamo.compat import OpOverload

aten = torch.ops.aten

_RESHAPED = frozenset((aten.view.default, aten._unsafe_view.default))
# Views of numbers, not of dimensions: they hang on how the tensor lies.
_PARTICULAR = frozenset((aten.as_strided.default, aten.view_as_complex.default, aten.view.dtype))
# Beside operations on elements: every overload of these.
_TAKES_ANY = """
    _fft_c2c _fft_c2r _fft_r2c _to_copy bmm cat clone cumsum flip gather index_put index_select masked_fill mean mm roll
    scatter sum tril triu
"""


def lay_out_anew(graph: fx.Graph, tangents: Mapping[fx.Node, Sequence[int]]) -> None:
    """Let a backward graph take some of its gradients in other strides.

    The values computed of them get the strides that eager gives them. An operation that may count on the layout which
    it was traced for, since its formula has seen to it, gets a copy in that layout.
    """
    traced: dict[fx.Node, torch.Tensor] = {}
    copies: dict[fx.Node, fx.Node] = {}
    for tangent, strides in tangents.items():
        like = traced[tangent] = tangent.meta["val"]
        tangent.meta["val"] = empty_as(like, range(like.ndim), strides)
    for node in graph.nodes if tangents else ():
        given = [source for source in node.all_input_nodes if source in traced]
        if node.op != "call_function" or not given:
            continue
        if _takes_any_layout(node):
            like = node.meta["val"]
            node.target = aten.reshape.default if node.target in _RESHAPED else node.target
            with like.fake_mode, torch.no_grad():
                made = node.target(*fake(node.args), **fake(node.kwargs))
            if keys(made.stride()) != keys(like.stride()):
                traced[node] = like
            node.meta["val"] = made
            continue
        for source in given:
            if source not in copies:
                with graph.inserting_before(node):
                    copies[source] = laid_out(graph, source, traced[source])
            node.replace_input_with(source, copies[source])


def _takes_any_layout(node: fx.Node) -> bool:
    """Whether an operation computes the same of tensors that lie in any order."""
    op = node.target
    if not isinstance(op, OpOverload) or op.namespace != "aten" or not isinstance(node.meta["val"], torch.Tensor):
        return False
    named = op.overloadpacket.__name__ in _TAKES_ANY.split() or op in _RESHAPED
    return named or torch.Tag.pointwise in op.tags or (is_view(op) and op not in _PARTICULAR)


def laid_out(graph: fx.Graph, source: fx.Node, like: torch.Tensor) -> fx.Node:
    """A copy of `source` in the layout of `like`, a fake tensor of its shape."""
    inner = sorted(range(like.ndim), key=lambda dim: (hint(like.stride(dim)), hint(like.shape[dim]), -dim))
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
