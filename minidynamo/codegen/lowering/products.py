"""Owns small matrix products on a CPU, where a call of torch takes longer than the product.

Larger products, and those of half types, are extern calls.
"""

from __future__ import annotations

from typing import Any

import torch

from minidynamo.codegen.lowering.builder import Builder
from minidynamo.codegen.lowering.formula import NotLowered
from minidynamo.codegen.lowering.registry import Value, lowering

MOST_PRODUCTS = (1 << 14) - 1
"""The most multiplications of a product that is lowered: they take about as long as a call of torch, and one thread."""


@lowering("mm")
def lower_mm(builder: Builder, a: Value, b: Value, *args: Any) -> Value:
    """Computes the product of two small matrices."""
    dtype = builder.out.dtype
    (m, k), n = a.shape, b.shape[1]
    is_lowered = builder.target == "cpp" and a.dtype == b.dtype == dtype in (torch.float32, torch.float64)
    work = m * k * n
    if args or not is_lowered or not isinstance(work, int) or work > MOST_PRODUCTS:
        raise NotLowered
    rows = a.view((m, 1, k), lambda new: (new[0], new[2]))
    columns = b.view((1, n, k), lambda new: (new[2], new[1]))
    return builder.reduce("sum", lambda u, v: u * v, rows, columns, dims=[2], dtype=dtype)


@lowering("addmm")
def lower_addmm(builder: Builder, x: Value, a: Value, b: Value, *args: Any, beta: Any = 1, alpha: Any = 1) -> Value:
    """Adds a tensor to the product of two small matrices."""
    if (beta, alpha) != (1, 1) or x.dtype != builder.out.dtype:
        raise NotLowered
    return builder.map(lambda u, v: u + v, x, lower_mm(builder, a, b, *args))
