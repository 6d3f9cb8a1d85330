"""Owns calls along a dimension of a tensor with dimensions not in memory order.

Functional operators return contiguous tensors, but a tensor written by the program keeps the layout. So the call gets
permuted arguments, and the result is permuted back: then the result can use the memory of the written tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from minidynamo.autograd.graph.graph_builder import GraphBuilder, is_dense
from minidynamo.autograd.graph.numbers import is_symbolic

aten = torch.ops.aten

ALONG: dict[Any, tuple[int, ...]] = {
    aten.cumprod.default: (),
    aten.cumsum.default: (),
    aten.index_add.default: (3,),
    aten.index_copy.default: (3,),
    aten.index_reduce.default: (3,),
    aten.logcumsumexp.default: (),
    aten.scatter.reduce: (2, 3),
    aten.scatter.src: (2, 3),
    aten.scatter.value: (2,),
    aten.scatter.value_reduce: (2,),
    aten.scatter_add.default: (2, 3),
    aten.scatter_reduce.two: (2, 3),
}
"""Operators that take a tensor and a dimension first, with the positions of further arguments that have the same
dimensions."""


def emit_permuted(
    builder: GraphBuilder, op: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[fx.Node, fx.Node] | None:
    """Emits a call on permuted arguments, so that the result has the strides of the first argument; returns the call
    and the result. None if unnecessary, or if unknown."""
    value = args[0].meta["val"] if op in ALONG else None
    if value is None or value.ndim < 2 or any(map(is_symbolic, (*value.shape, *value.stride()))):
        return None
    alike = [args[0], *(args[position] for position in ALONG[op])]
    order = sorted(range(value.ndim), key=lambda d: (-value.stride()[d], -value.shape[d], d))
    if value.is_contiguous() or not is_dense(value) or any(each.meta["val"].ndim != value.ndim for each in alike):
        return None
    given = list(args)
    for position in (0, *ALONG[op]):
        given[position] = builder.emit(aten.permute.default, args[position], order)
    given[1] = order.index(args[1] % value.ndim)
    result = builder.emit(op, *given, **kwargs)
    return result, builder.emit(aten.permute.default, result, [order.index(d) for d in range(value.ndim)])
