"""Owns numbers that become known when the graph runs, in a dtype that may not hold them.

Eager raises an error then, which no kernel can: the host program does, before anything else happens.
"""

from __future__ import annotations

import torch

from minidynamo.codegen.ir.expr import Scalar
from minidynamo.codegen.ir.loops import Name
from minidynamo.codegen.ir.size import Size, known_at_least, product
from minidynamo.codegen.lowering.builder import Builder
from minidynamo.codegen.lowering.formula import NotLowered, Number, V, all_fit, const
from minidynamo.codegen.lowering.values import Value
from minidynamo.codegen.runtime.host_functions import must_fit


def run_time_dtype(value: V | Number) -> torch.dtype | None:
    """The dtype of a number that nobody knows yet; None for others."""
    return value.dtype if isinstance(value, V) else torch.int64 if isinstance(value, Size) else None


def may_not_fit(value: V | Number | Value, dtype: torch.dtype) -> bool:
    """Whether torch may refuse to convert to `dtype` a number that is not known yet, or is in a tensor."""
    given = value.dtype if isinstance(value, Value) else run_time_dtype(value)
    return given is not None and not all_fit(given, dtype)


def converted(builder: Builder, value: V | Number, dtype: torch.dtype) -> V:
    """`value` in `dtype`; the host program raises the error that eager raises of it."""
    if may_not_fit(value, dtype):
        scalar = value.expr if isinstance(value, V) else None
        # Torch is more lenient with half types where it fills one element.
        if not known_at_least(product(builder.out.shape), 2) or (scalar and not isinstance(scalar, Scalar)):
            raise NotLowered
        builder.require(must_fit, Name(scalar.name) if isinstance(scalar, Scalar) else value, dtype)
    return const(value, dtype)
