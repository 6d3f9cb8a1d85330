"""Owns batched gradients: many gradients at once, which code sees as one (`is_grads_batched=True`, `torch.vmap`).

Compiled code reads memory, so it is called once per gradient. The callers choose the function to call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from minidynamo import compat

Gradients = Sequence[torch.Tensor | None]


def has_batches(tangents: Gradients) -> bool:
    """Returns whether some of `tangents` are batched."""
    return any(tangent is not None and compat.is_batched(tangent) for tangent in tangents)


def one_by_one(function: Callable[[Gradients], Gradients], tangents: Gradients) -> list[torch.Tensor | None]:
    """Calls `function` once per gradient of the batches in `tangents`; returns its results as batches."""
    levels = [None if tangent is None else compat.batch_level(tangent) for tangent in tangents]
    level = max(level for level in levels if level is not None)
    given: list[Any] = [
        compat.unbatched(tangent, level) if tangent is not None and at == level else tangent
        for tangent, at in zip(tangents, levels)
    ]
    size = next(len(batch) for batch, at in zip(given, levels) if at == level)
    rows = []
    for i in range(size):
        row = [value[i] if at == level else value for value, at in zip(given, levels)]
        if has_batches(row):
            rows.append(function(row))
        else:
            with compat.without_transforms():
                rows.append(function(row))
    stacked = [None if parts[0] is None else torch.stack(parts) for parts in zip(*rows)]
    return [None if value is None else compat.batched(value, level) for value in stacked]
