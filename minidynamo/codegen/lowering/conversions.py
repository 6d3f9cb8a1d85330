"""Owns the conversion of numbers that are known at run time only, to a dtype that may be too small.

Eager raises an error for a number that does not fit. A kernel cannot raise, so the host program checks the number
before its first step.
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
    """Returns the dtype of a number that is known at run time only, else None."""
    return value.dtype if isinstance(value, V) else torch.int64 if isinstance(value, Size) else None


def may_not_fit(value: V | Number | Value, dtype: torch.dtype) -> bool:
    """Returns whether torch may refuse the conversion of a run-time number or of a tensor to `dtype`."""
    given = value.dtype if isinstance(value, Value) else run_time_dtype(value)
    return given is not None and not all_fit(given, dtype)


def converted(builder: Builder, value: V | Number, dtype: torch.dtype) -> V:
    """Converts `value` to `dtype`; the host program raises eager's error if it does not fit."""
    if may_not_fit(value, dtype):
        scalar = value.expr if isinstance(value, V) else None
        # For half types torch accepts more numbers when it fills a single element.
        if not known_at_least(product(builder.out.shape), 2) or (scalar and not isinstance(scalar, Scalar)):
            raise NotLowered
        builder.require(must_fit, Name(scalar.name) if isinstance(scalar, Scalar) else value, dtype)
    return const(value, dtype)
