"""Owns what stands in graphs for programs that set back how often torch counts a tensor as written.

What may be captured is the tracer's to decide (`tracer/calls/version_counter.py`).
"""

from __future__ import annotations

import torch

from minidynamo import compat
from minidynamo.graph.storage_resize import copy_unseen, resize_storage


def uncount(tensor: torch.Tensor, writes: int) -> None:
    """Have torch count the memory of a tensor as written so much less often than it does."""
    compat.set_versions([tensor], [tensor._version - writes])


UNCOUNTED = frozenset((resize_storage, copy_unseen, uncount))
"""What changes the memory of tensors, or the count of writes to it, without being counted."""
