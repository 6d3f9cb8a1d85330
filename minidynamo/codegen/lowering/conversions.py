"""Owns numbers that become known when the graph runs, in a dtype that may not hold them.

Eager raises an error then, which no kernel can: torch converts the number, where the call stands, and the kernel reads
what came out.
"""

from __future__ import annotations

import torch

from minidynamo.codegen.ir.expr import Scalar
from minidynamo.codegen.ir.index import as_index
from minidynamo.codegen.ir.loops import Buffer, Extern, Name
from minidynamo.codegen.ir.size import Size, known_at_least, product
from minidynamo.codegen.lowering.builder import Builder
from minidynamo.codegen.lowering.formula import NotLowered, Number, V, all_fit, const
from minidynamo.codegen.lowering.values import Value


def run_time_dtype(value: V | Number) -> torch.dtype | None:
    """The dtype of a number that nobody knows yet; None for others."""
    return value.dtype if isinstance(value, V) else torch.int64 if isinstance(value, Size) else None


def may_not_fit(value: V | Number | Value, dtype: torch.dtype) -> bool:
    """Whether torch may refuse to convert to `dtype` a number that is not known yet, or is in a tensor."""
    given = value.dtype if isinstance(value, Value) else run_time_dtype(value)
    return given is not None and not all_fit(given, dtype)


def converted(builder: Builder, value: V | Number, dtype: torch.dtype) -> V:
    """`value` in `dtype`, or the error that eager raises of it."""
    if not may_not_fit(value, dtype):
        return const(value, dtype)
    # Torch is more lenient with half types where it fills one element.
    if not known_at_least(product(builder.out.shape), 2) or (
        isinstance(value, V) and not isinstance(value.expr, Scalar)
    ):
        raise NotLowered
    name = builder.fresh("number")
    layout = Buffer(name, (2,), (1,), dtype, builder.device)
    given = Name(value.expr.name) if isinstance(value, V) and isinstance(value.expr, Scalar) else value
    named = (("dtype", dtype), ("device", builder.device))
    call = Extern(name, torch.ops.aten.full.default, ((2,), given), named, layout=layout, origins=builder.origins)
    builder.nodes.append(call)
    builder.buffers[name] = layout
    return V(Value.whole(layout).load((as_index(0),)))
