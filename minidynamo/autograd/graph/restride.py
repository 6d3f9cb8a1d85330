"""Owns calls along a dimension of memory whose dimensions are not in the order of memory.

Operators that return new values return contiguous ones. What the program writes to keeps its layout, so such a call is
made of permuted arguments, and its result permuted back: then the result can lie where the program has written it.
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
"""Operators whose first arguments are a tensor and a dimension of it, with the positions of those arguments that have
the same dimensions as the tensor."""


def emit_permuted(
    emitter: GraphBuilder, op: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[fx.Node, fx.Node] | None:
    """Emit a call so that its result has the strides of its first argument: the call, and the result. None where it
    has them anyway, or where that cannot be told."""
    value = args[0].meta["val"] if op in ALONG else None
    if value is None or value.ndim < 2 or any(map(is_symbolic, (*value.shape, *value.stride()))):
        return None
    alike = [args[0], *(args[position] for position in ALONG[op])]
    order = sorted(range(value.ndim), key=lambda d: (-value.stride()[d], -value.shape[d], d))
    if value.is_contiguous() or not is_dense(value) or any(each.meta["val"].ndim != value.ndim for each in alike):
        return None
    given = list(args)
    for position in (0, *ALONG[op]):
        given[position] = emitter.emit(aten.permute.default, args[position], order)
    given[1] = order.index(args[1] % value.ndim)
    made = emitter.emit(op, *given, **kwargs)
    return made, emitter.emit(aten.permute.default, made, [order.index(d) for d in range(value.ndim)])
