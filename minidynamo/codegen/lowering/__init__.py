"""From ATen operations to loop nests.

Owns one lowering per operation, in one table; importing the folder registers all.
Does not own fusion (`scheduling/`).
Enter at `graph.lower_graph`, `registry.lowering`.
"""

from __future__ import annotations

from minidynamo.codegen.lowering import (
    constructors,
    indexing,
    kernel_choices,
    normalization,
    pointwise,
    reductions,
    views,
)

__all__ = ["constructors", "indexing", "kernel_choices", "normalization", "pointwise", "reductions", "views"]
