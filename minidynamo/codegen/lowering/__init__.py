"""From ATen operations to loop nests: the tables of lowerings, and the walk over the graph.

Importing the package registers every lowering.
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
