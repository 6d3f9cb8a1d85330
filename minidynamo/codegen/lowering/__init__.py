"""Lowers ATen operations to loop nests.

Owns a table with a lowering per operation; importing the folder registers all lowerings.
Does not own fusion (`scheduling/`).
Enter at `graph.lower_graph`, `registry.lowering`.
"""

from __future__ import annotations

from minidynamo.codegen.lowering import (
    constructors,
    indexing,
    normalization,
    pointwise,
    products,
    reductions,
    views,
)

__all__ = [
    "constructors",
    "indexing",
    "normalization",
    "pointwise",
    "products",
    "reductions",
    "views",
]
