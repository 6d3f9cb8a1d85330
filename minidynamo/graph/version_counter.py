"""Owns the graph function for programs that reset a tensor's version counter.

The tracer decides what may be captured (`tracer/calls/tensors.py`).
"""

from __future__ import annotations

import torch

from minidynamo import compat
from minidynamo.graph.storage_resize import copy_unseen, resize_storage


def lower_version(tensor: torch.Tensor, writes: int) -> None:
    """Reduces the version of a tensor by `writes`."""
    compat.set_versions([tensor], [tensor._version - writes])


UNCOUNTED = frozenset((resize_storage, copy_unseen, lower_version))
"""Functions that change the memory or the version of tensors without counting a write."""
